// One-dimensional blocks: threads number the elements of x, or those of its transpose, as they lie in memory, `width` of
// them to a thread.
#pragma once

#include "device/vec.h"
#include "host/launch.h"
#include "row/rows.h"
#include "transform/transpose/place.cuh"

namespace warpsmith {

inline constexpr int kFlatThreads = 256;

struct FlatIndex {
  FastDivide inner, outer;  // of a matrix: groups along the fast dimension, and lines of these
  int64_t threads;

  FlatIndex(const TransposeArgs& a, int64_t groups, int64_t lines)
      : inner(static_cast<uint64_t>(groups)), outer(static_cast<uint64_t>(lines)), threads(a.count * groups * lines) {}
};

struct FlatPlace {
  Offsets matrix;
  int64_t inner, outer;
};

__device__ __forceinline__ FlatPlace flat_place(const BatchDims& batch, const FlatIndex& index, int64_t thread) {
  const int64_t line = index.inner.quotient_as(thread);
  const int64_t matrix = index.outer.quotient_as(line);
  return {.matrix = matrix_offsets(batch, matrix),
          .inner = thread - line * static_cast<int64_t>(index.inner.divisor),
          .outer = line - matrix * static_cast<int64_t>(index.outer.divisor)};
}

// Threads along the rows of x: they read what lies together, and write it apart.
template <class T, int width>
__device__ __forceinline__ void flat_col2row(const TransposeArgs& a, const FlatIndex& index) {
  const T* x = static_cast<const T*>(a.x);
  T* y = static_cast<T*>(a.y);
  for (int64_t i = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x; i < index.threads;
       i += int64_t{gridDim.x} * kFlatThreads) {
    const FlatPlace at = flat_place(a.batch, index, i);
    const int64_t row = at.outer, col = at.inner * width;
    const T* from = x + at.matrix.x + row * a.x_row + col * a.x_col;
    T* to = y + at.matrix.y + col * a.y_col + row;
    Vec<T, width> values;
    load(values, from);
#pragma unroll
    for (int k = 0; k < width; ++k) to[k * a.y_col] = values[k];
  }
}

// Threads along the rows of the transpose: they read what lies apart, and write it together.
template <class T, int width>
__device__ __forceinline__ void flat_row2col(const TransposeArgs& a, const FlatIndex& index) {
  const T* x = static_cast<const T*>(a.x);
  T* y = static_cast<T*>(a.y);
  for (int64_t i = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x; i < index.threads;
       i += int64_t{gridDim.x} * kFlatThreads) {
    const FlatPlace at = flat_place(a.batch, index, i);
    const int64_t row = at.inner * width, col = at.outer;
    const T* from = x + at.matrix.x + row * a.x_row + col * a.x_col;
    T* to = y + at.matrix.y + col * a.y_col + row;
    Vec<T, width> values;
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = from[k * a.x_row];
    store(to, values);
  }
}

inline unsigned flat_grid(const FlatIndex& index) { return row_grid(ceil_div(index.threads, kFlatThreads)); }

}  // namespace warpsmith
