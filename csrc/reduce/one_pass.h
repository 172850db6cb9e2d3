// How the work of a single launch is cut: tiles, and the blocks that walk over them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace warpsmith {

// threads of a block | 128-bit packs of each operand that a thread has in flight | blocks per multiprocessor that the
// registers must allow | how many times over the blocks of a long call fill the GPU
template <int threads_, int packs_, int blocks_, int waves_>
struct OnePassTile {
  static constexpr int threads = threads_, packs = packs_, blocks = blocks_, waves = waves_;
  static constexpr int size = threads * packs;  // packs of a tile

  // Blocks for that many packs. A fixed function of the size and the GPU, and so is the order of every addition.
  static int64_t grid(int64_t packs_of_operand, int sm_count) {
    const int64_t tiles = (packs_of_operand + size - 1) / size;
    return std::clamp<int64_t>(tiles, 1, most_blocks(sm_count));
  }

  static int64_t most_blocks(int sm_count) { return int64_t{blocks} * waves * sm_count; }

  // Of workspace: the sum of each block, and a ticket.
  static int64_t workspace_bytes(int sm_count) { return (most_blocks(sm_count) + 1) * 8; }
};

using SumTile = OnePassTile<256, 4, 6, 1>;
using DotTile = OnePassTile<256, 4, 4, 1>;

}  // namespace warpsmith
