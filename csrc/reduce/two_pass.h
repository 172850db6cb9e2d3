// How the work is cut where a second launch adds up what the blocks of the first leave.
#pragma once

#include "reduce/walk.h"

namespace warpsmith {

// What is shorter is read in less time than the host takes for a second launch.
inline constexpr int64_t kTwoPassBytes = 8 << 20;  // of all operands

// Of a call with that many operands.
template <int operands>
struct TwoPass {
  using Tile = WalkTile<8 / operands, 4>;
  static constexpr int kWaves = 2;

  static Walk walk(int64_t packs, int sm_count) {
    return strided<Tile>(packs, int64_t{kWaves} * Tile::blocks * sm_count);
  }

  // A sum for each block.
  static int64_t workspace_bytes(int sm_count) { return int64_t{8} * kWaves * Tile::blocks * sm_count; }
};

}  // namespace warpsmith
