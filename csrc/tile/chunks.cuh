// Values from shared memory, 16 bytes an access.
#pragma once

#include "device/vec.h"
#include "host/dtype.h"

namespace warpsmith {

// `count` values, chunk by chunk, `step` values apart.
template <class T, int count>
__device__ __forceinline__ void load_chunks(T (&to)[count], const T* shared, int step) {
  constexpr int kWidth = kPack<T>;
#pragma unroll
  for (int i = 0; i < count; i += kWidth) {
    Vec<T, kWidth> values;
    load(values, shared + i / kWidth * step);
#pragma unroll
    for (int c = 0; c < kWidth; ++c) to[i + c] = values[c];
  }
}

}  // namespace warpsmith
