// A run of values as aligned accesses of `width` values each, with the few values that stand before and after them.
#pragma once

#include <cstdint>

#include "device/vec.h"
#include "host/ceil_div.h"
#include "host/min_max.h"

namespace warpsmith {

template <class T, int width>
struct Span {
  const T* data;  // [head + accesses * width + tail]
  int64_t accesses;
  int head, tail;  // fewer than `width` each

  Span(const void* first, int64_t n) : data(static_cast<const T*>(first)) {
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) / sizeof(T) % width);
    head = static_cast<int>(std::min<int64_t>(n, (width - past) % width));
    accesses = (n - head) / width;
    tail = static_cast<int>(n - head - accesses * width);
  }

  // Where access i lies.
  __device__ __forceinline__ const T* at(int64_t i) const { return data + head + i * width; }

  // The values outside of the accesses, those of the head first.
  __device__ __forceinline__ int ends() const { return head + tail; }
  __device__ __forceinline__ T end(int i) const { return data[i < head ? i : accesses * width + i]; }
};

// Accesses `first`, `first + stride`, …; those past the end of the span read as zeros, which every dtype writes as zero
// bits. `whole`: none is past it.
template <Cache cache = Cache::normal, class T, int width, int count>
__device__ __forceinline__ void load_strided(Vec<T, width> (&to)[count], const Span<T, width>& from, int64_t first,
                                             int stride, bool whole) {
  if (whole) {
#pragma unroll
    for (int i = 0; i < count; ++i) load<cache>(to[i], from.at(first + i * stride));
    return;
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    to[i] = {};
    if (first + i * stride < from.accesses) load<cache>(to[i], from.at(first + i * stride));
  }
}

}  // namespace warpsmith
