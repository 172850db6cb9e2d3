// Tiles of a long array, and the blocks that walk over them.
#pragma once

#include <cstdint>

#include "host/ceil_div.h"
#include "host/min_max.h"

namespace warpsmith {

// 128-bit packs of each operand that a thread has in flight | blocks per multiprocessor that the registers must allow |
// whether a block takes one tile and no more
template <int packs_, int blocks_, bool single_ = false>
struct WalkTile {
  static constexpr int threads = 256, packs = packs_, blocks = blocks_;
  static constexpr int size = threads * packs;  // packs of a tile
  static constexpr bool single = single_;
};

// Which packs a block takes: tiles that begin at blockIdx.x * apart and every `step` from there on, within `extent`. A
// fixed function of the size and the GPU, and so is the order of every addition.
struct Walk {
  int64_t blocks;
  int64_t apart, step, extent;  // in packs
};

// Neighbouring tiles go to different blocks.
template <class Tile>
Walk strided(int64_t packs, int64_t most_blocks) {
  const int64_t blocks = clamp<int64_t>(ceil_div(packs, Tile::size), 1, most_blocks);
  return {blocks, Tile::size, blocks * Tile::size, packs};
}

// A block takes tiles that lie one after another.
template <class Tile>
Walk chunked(int64_t packs, int64_t most_blocks) {
  const int64_t chunk = ceil_div(packs, most_blocks * Tile::size) * Tile::size;
  return {ceil_div(packs, chunk), chunk, Tile::size, chunk};
}

}  // namespace warpsmith
