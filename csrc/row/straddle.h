// Packs that begin between two 16-byte borders.
#pragma once

#include <cstdint>

#include "device/convert.h"
#include "row/packed.h"

namespace warpsmith {

// Values from the 16-byte border before `row` to its start.
template <class T>
__device__ __forceinline__ int phase_of(const T* row) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % kPack<T>);
}

// A pack of T out of the two that it straddles: without the first `phase` values of `low`, fewer than a pack.
template <class T>
__device__ __forceinline__ uint4 straddling_pack(const uint4& low, const uint4& high, int phase) {
  uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const int whole = phase * static_cast<int>(sizeof(T)) / 4;
#pragma unroll
  for (int step = 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i + step < 8; ++i) words[i] = (whole & step) != 0 ? words[i + step] : words[i];
  }
  if constexpr (sizeof(T) == 2) {
    const uint32_t half = phase % 2 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], half);
  }
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace warpsmith
