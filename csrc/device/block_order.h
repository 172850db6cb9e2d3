// In which order blocks take the tiles of a matrix.
#pragma once

#include <cstdint>

namespace warpsmith {

struct TileCoord {
  int64_t m, n;  // in tiles
};

// Tile `linear` (from 0 to tiles_m tiles_n - 1) of an order in which `group` rows of tiles are walked column by column.
// Blocks that run at the same time then cover a near-square of tiles: they read few rows of a and few columns of b,
// which L2 holds, where row by row they would read all of b.
// Matrices of 2^32 tiles fit no GPU, so 32-bit division, several times faster, will do.
__host__ __device__ constexpr TileCoord grouped_tile(int64_t linear, int64_t tiles_m, int64_t tiles_n, int group) {
  const uint32_t index = static_cast<uint32_t>(linear), rows = static_cast<uint32_t>(tiles_m);
  const uint32_t full = static_cast<uint32_t>(group) < rows ? static_cast<uint32_t>(group) : rows;
  const uint32_t tiles = full * static_cast<uint32_t>(tiles_n);
  const uint32_t first = index / tiles * full, within = index % tiles;
  const uint32_t height = rows - first < full ? rows - first : full;
  return {static_cast<int64_t>(first + within % height), static_cast<int64_t>(within / height)};
}

}  // namespace warpsmith
