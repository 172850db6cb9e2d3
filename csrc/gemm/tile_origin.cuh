// Which tile of the product a block of a teaching rung computes.
#pragma once

#include "gemm/gemm.h"
#include "tile/place.cuh"

namespace warpsmith {

// Tiles row by row.
template <class Tile>
__device__ __forceinline__ Origin origin_by_rows(const GemmArgs& p) {
  const uint32_t across = static_cast<uint32_t>(ceil_div(p.n, Tile::bn));
  return {int64_t{blockIdx.x / across} * Tile::bm, int64_t{blockIdx.x % across} * Tile::bn};
}

// Groups of rows of tiles, each column by column. Eight rows: as wide as high when a wave of a GPU's blocks runs.
template <class Tile>
__device__ __forceinline__ Origin origin_by_groups(const GemmArgs& p) {
  constexpr int kGroup = 8;
  const TileCoord tile = grouped_tile(blockIdx.x, ceil_div(p.m, Tile::bm), ceil_div(p.n, Tile::bn), kGroup);
  return {tile.m * Tile::bm, tile.n * Tile::bn};
}

}  // namespace warpsmith
