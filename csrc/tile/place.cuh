// Which tile of a product a block computes.
#pragma once

#include <cstdint>

#include "device/block_order.h"
#include "host/ceil_div.h"

namespace warpsmith {

struct Origin {
  int64_t m, n;  // of the tile's first value
};

// Of a batch: the grid's x runs over all tiles of one product after those of another.
template <class Tile>
class Place {
 public:
  static constexpr int kGroupRows = 2048;  // about as high as a wave of a GPU's blocks is then wide

  __device__ __forceinline__ Place(int64_t product_m, int64_t product_n) {
    const int64_t down = ceil_div(product_m, Tile::bm), across = ceil_div(product_n, Tile::bn);
    const uint32_t tiles = static_cast<uint32_t>(down * across);
    const TileCoord tile = grouped_tile(blockIdx.x % tiles, down, across, kGroupRows / Tile::bm);
    batch_ = blockIdx.x / tiles;
    tile_m_ = static_cast<uint32_t>(tile.m);
    tile_n_ = static_cast<uint32_t>(tile.n);
  }

  // Of one product: tile `linear` for a cluster of `blocks`, whose tiles lie below each other, this block's at `rank`.
  __device__ __forceinline__ Place(int64_t product_m, int64_t product_n, int64_t linear, int blocks, int rank) {
    const TileCoord tile = grouped_tile(linear, ceil_div(product_m, blocks * Tile::bm), ceil_div(product_n, Tile::bn),
                                        kGroupRows / (blocks * Tile::bm));
    batch_ = 0;
    tile_m_ = static_cast<uint32_t>(tile.m) * blocks + rank;
    tile_n_ = static_cast<uint32_t>(tile.n);
  }

  __device__ __forceinline__ int64_t batch() const { return batch_; }
  __device__ __forceinline__ int64_t m() const { return int64_t{tile_m_} * Tile::bm; }
  __device__ __forceinline__ int64_t n() const { return int64_t{tile_n_} * Tile::bn; }

 private:
  uint32_t batch_, tile_m_, tile_n_;  // kept through the main loop, in as few registers as can be
};

}  // namespace warpsmith
