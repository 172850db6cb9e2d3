// Threads for elements or packs of images, numbered as these lie in memory.
#pragma once

#include "device/vec.h"
#include "host/launch.h"
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

struct ImagePlace {
  int64_t outer, row, col, inner;
};

__device__ __forceinline__ int64_t divide(int64_t& n, const FastDivide& by) {
  const int64_t quotient = by.quotient_as(n);
  const int64_t rest = n - quotient * static_cast<int64_t>(by.divisor);
  n = quotient;
  return rest;
}

__device__ __forceinline__ ImagePlace image_place(const ImageGrid& grid, int64_t thread) {
  ImagePlace at;
  at.inner = divide(thread, grid.inner);
  at.col = divide(thread, grid.cols);
  at.row = divide(thread, grid.rows);
  at.outer = thread;
  return at;
}

__device__ __forceinline__ int64_t upsample_thread() { return int64_t{blockIdx.x} * kUpsampleThreads + threadIdx.x; }

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
