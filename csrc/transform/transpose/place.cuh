// Where an element, a matrix or a tile of the batch lies in x and in its transpose.
#pragma once

#include "transform/transpose/transpose.h"

namespace warpsmith {

struct Offsets {
  int64_t x, y;  // elements
};

// The matrix of that number. In 32 bits: where it, and so every dimension of the batch, is less than 2^31.
template <class Int>
__device__ __forceinline__ Offsets matrix_offsets(const BatchDims& batch, Int index) {
  Offsets at{0, 0};
  for (int d = 0; d < batch.rank; ++d) {
    const Int rest = batch.sizes[d].quotient_as(index);
    const Int i = index - rest * static_cast<Int>(batch.sizes[d].divisor);
    at.x += int64_t{i} * batch.x[d];
    at.y += int64_t{i} * batch.y[d];
    index = rest;
  }
  return at;
}

struct TilePlace {
  Offsets matrix;
  int64_t row, col;  // of the tile's first element
};

// Of the tile that is a block's: there are fewer than 2^31 (needs_tiles).
__device__ __forceinline__ TilePlace place_of(const BatchDims& batch, const TileGrid& grid, int tile_rows,
                                              int tile_cols) {
  const uint32_t tile = blockIdx.x;
  const uint32_t line = grid.across.small_quotient(tile), matrix = grid.down.small_quotient(line);
  const uint32_t down = line - matrix * static_cast<uint32_t>(grid.down.divisor);
  const uint32_t across = tile - line * static_cast<uint32_t>(grid.across.divisor);
  return {.matrix = matrix_offsets(batch, static_cast<int>(matrix)),
          .row = int64_t{down} * tile_rows,
          .col = int64_t{across} * tile_cols};
}

}  // namespace warpsmith
