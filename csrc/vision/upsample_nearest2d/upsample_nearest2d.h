// Nearest neighbours of a finer or coarser grid: y[.., i, j, ..] = x[.., source(i), source(j), ..], and the gradient, which
// adds up what came of each value.
#pragma once

#include <cmath>
#include <cstdint>

#include "device/fast_divide.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/dtype.h"

namespace warpsmith {

// Of images in either layout: `inner` is 1 where rows are contiguous, and the number of channels where these are.
struct UpsampleArgs {
  const void* from;  // x [outer, h, w, inner], or grad [outer, out_h, out_w, inner]
  void* to;          // y [outer, out_h, out_w, inner], or dx [outer, h, w, inner]
  int64_t outer, h, w, inner;
  int64_t out_h, out_w;
  float scale_h, scale_w;  // rows and columns of x for one of y
  Dtype dtype;
};

// Whether the image becomes exactly twice as high and as wide.
inline bool doubles(const UpsampleArgs& a) {
  return a.out_h == 2 * a.h && a.out_w == 2 * a.w && a.scale_h == 0.5f && a.scale_w == 0.5f;
}

inline int upsample_width(const UpsampleArgs& a) { return 16 / size_of(a.dtype); }

inline bool starts_at(const UpsampleArgs& a, int bytes) {
  return reinterpret_cast<uintptr_t>(a.from) % static_cast<uintptr_t>(bytes) == 0;
}

inline const char* needs_channel_packs(const UpsampleArgs& a) {
  return a.inner % upsample_width(a) == 0 && starts_at(a, 16)
             ? nullptr
             : "needs channels that are neighbours, in packs of 16 bytes";
}

// Of rows: the result's are whole packs. Of channels: both sides' are.
inline const char* needs_result_packs(const UpsampleArgs& a) {
  if (a.inner == 1) return a.out_w % upsample_width(a) == 0 ? nullptr : "needs rows of the result in packs of 16 bytes";
  return needs_channel_packs(a);
}

// `bytes`: of the accesses to what is read.
inline const char* needs_doubled_rows(const UpsampleArgs& a, int bytes) {
  if (a.inner != 1 || !doubles(a)) return "needs contiguous rows, twice as many and twice as long";
  const bool whole = a.out_w % upsample_width(a) == 0 && starts_at(a, bytes);
  return whole ? nullptr : "needs rows that begin at and are whole packs of 16 bytes, of x half as many";
}

// The same two functions in Python: warpsmith.vision.upsample_nearest2d. In `int` where sizes are below 2^30: conversions
// between float and 64 bits take several times as long.
#ifdef __CUDACC__
// Rounded down, to an integer that is there whatever the scale.
template <class Int>
__device__ __forceinline__ Int whole_number(float at) {
  constexpr float kMost = sizeof(Int) == 4 ? 0x1p30f : 0x1p62f;
  return static_cast<Int>(fminf(fmaxf(at, 0.0f), kMost));
}

// Of the result's row or column, rounded as PyTorch does.
template <class Int>
__device__ __forceinline__ Int upsample_source(Int i, float scale, Int size) {
  return min(whole_number<Int>(__fmul_rn(static_cast<float>(i), scale)), size - 1);
}

// The first of the result's rows or columns that comes from `i` or a later one: near i times 1 / scale, and put right.
template <class Int>
__device__ __forceinline__ Int upsample_first(Int i, float scale, float inverse, Int size, Int out_size) {
  if (i >= size) return out_size;
  Int first = min(whole_number<Int>(ceilf(static_cast<float>(i) * inverse)), out_size);
  while (first > 0 && upsample_source(first - 1, scale, size) >= i) --first;
  while (first < out_size && upsample_source(first, scale, size) < i) ++first;
  return first;
}
#endif

}  // namespace warpsmith
