// Threads for elements or packs of images, numbered as these lie in memory.
#pragma once

#include "device/vec.h"
#include "host/launch.h"
#include "host/min_max.h"
#include "row/rows.h"
#include "vision/upsample_nearest2d/upsample_nearest2d.h"

namespace warpsmith {

inline constexpr int kUpsampleThreads = 256;

// [outer, rows, cols, inner], as many threads.
struct ImageGrid {
  FastDivide inner, cols, rows;
  int64_t threads;

  ImageGrid(int64_t outer, int64_t rows_, int64_t cols_, int64_t inner_)
      : inner(static_cast<uint64_t>(inner_)),
        cols(static_cast<uint64_t>(cols_)),
        rows(static_cast<uint64_t>(rows_)),
        threads(outer * rows_ * cols_ * inner_) {}

  unsigned blocks() const { return static_cast<unsigned>(ceil_div(threads, kUpsampleThreads)); }
};

template <class Int>
struct ImagePlace {
  Int outer, row, col, inner;
};

template <class Int>
__device__ __forceinline__ Int divide(Int& n, const FastDivide& by) {
  const Int quotient = by.quotient_as(n);
  const Int rest = n - quotient * static_cast<Int>(by.divisor);
  n = quotient;
  return rest;
}

template <class Int>
__device__ __forceinline__ ImagePlace<Int> image_place(const ImageGrid& grid, Int thread) {
  ImagePlace<Int> at;
  at.inner = divide(thread, grid.inner);
  at.col = divide(thread, grid.cols);
  at.row = divide(thread, grid.rows);
  at.outer = thread;
  return at;
}

template <class Int = int64_t>
__device__ __forceinline__ Int upsample_thread() {
  return static_cast<Int>(blockIdx.x) * kUpsampleThreads + static_cast<Int>(threadIdx.x);
}

// Calls body.template operator()<Int>() for what counts threads, rows and columns.
template <class Body>
void dispatch_counts(const UpsampleArgs& a, const ImageGrid& grid, Body&& body) {
  constexpr int64_t kMostSize = int64_t{1} << 30, kMostThreads = (int64_t{1} << 31) - kUpsampleThreads;
  const bool few = grid.threads <= kMostThreads && max_of(a.h, a.w, a.out_h, a.out_w) < kMostSize;
  few ? body.template operator()<int>() : body.template operator()<int64_t>();
}

// Calls body.template operator()<T>() for an unsigned integer of the size of an element.
template <class Body>
void dispatch_image(Dtype dtype, Body&& body) {
  switch (size_of(dtype)) {
    case 1:
      return body.template operator()<uint8_t>();
    case 2:
      return body.template operator()<uint16_t>();
    default:
      return body.template operator()<uint32_t>();
  }
}

}  // namespace warpsmith
