// Two-dimensional blocks: a square of threads for a square of the matrix, `width` elements to a thread.
#pragma once

#include "device/vec.h"
#include "host/launch.h"
#include "transform/transpose/place.cuh"

namespace warpsmith {

inline constexpr int kSide = 16;  // threads of a block along either dimension

// threadIdx.x along the rows of x.
template <class T, int width>
__device__ __forceinline__ void block_col2row(const TransposeArgs& a, const TilePlace& at) {
  const int64_t row = at.row + threadIdx.y, col = at.col + static_cast<int>(threadIdx.x) * width;
  if (row >= a.rows || col >= a.cols) return;
  const T* from = static_cast<const T*>(a.x) + at.matrix.x + row * a.x_row + col * a.x_col;
  T* to = static_cast<T*>(a.y) + at.matrix.y + col * a.y_col + row;
  Vec<T, width> values;
  load(values, from);
#pragma unroll
  for (int k = 0; k < width; ++k) to[k * a.y_col] = values[k];
}

// threadIdx.x along the rows of the transpose.
template <class T, int width>
__device__ __forceinline__ void block_row2col(const TransposeArgs& a, const TilePlace& at) {
  const int64_t row = at.row + static_cast<int>(threadIdx.x) * width, col = at.col + threadIdx.y;
  if (row >= a.rows || col >= a.cols) return;
  const T* from = static_cast<const T*>(a.x) + at.matrix.x + row * a.x_row + col * a.x_col;
  T* to = static_cast<T*>(a.y) + at.matrix.y + col * a.y_col + row;
  Vec<T, width> values;
#pragma unroll
  for (int k = 0; k < width; ++k) values[k] = from[k * a.x_row];
  store(to, values);
}

}  // namespace warpsmith
