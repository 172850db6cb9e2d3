// Tiles of 32 x 32 elements that pass through shared memory, so that reads and writes are both along lines. `Place` says
// where an element of the tile lies there.
#pragma once

#include "host/launch.h"
#include "transform/transpose/place.cuh"

namespace warpsmith {

inline constexpr int kTileSide = 32, kTileRows = 8;  // elements of a tile's side; rows of threads

template <class T, class Place>
__device__ __forceinline__ void transpose_tile(const TransposeArgs& a, const TileGrid& grid, T* shared, Place place) {
  const TilePlace at = place_of(a.batch, grid, kTileSide, kTileSide);
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);

  // read rows of x
  const T* x = static_cast<const T*>(a.x) + at.matrix.x + at.row * a.x_row + at.col;
#pragma unroll
  for (int i = ty; i < kTileSide; i += kTileRows) {
    if (at.row + i < a.rows && at.col + tx < a.cols) shared[place(i, tx)] = x[i * a.x_row + tx];
  }
  __syncthreads();

  // write rows of the transpose
  T* y = static_cast<T*>(a.y) + at.matrix.y + at.col * a.y_col + at.row;
#pragma unroll
  for (int i = ty; i < kTileSide; i += kTileRows) {
    if (at.row + tx < a.rows && at.col + i < a.cols) y[i * a.y_col + tx] = shared[place(tx, i)];
  }
}

}  // namespace warpsmith
