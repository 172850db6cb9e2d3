// Tiles of the forward kernels on tensor cores: one for each head dimension and kind of GPU.
//
//   d, dv           values of a query's or key's row, and of a value's, that the tile holds; of shorter ones the rest is 0
//   bm, bn          queries of a block, keys of a step
//   warps           each has bm / warps queries, 16 or 32 of them
//   stages          of keys and values in shared memory. 2: those of the next step are on their way during a whole step,
//                   which has one barrier. 1: in half the memory, keys are on their way while scores become weights and
//                   multiply values, values while scores are formed, and a step has two barriers.
//   blocks          that a multiprocessor is to hold
//   q_in_registers  queries are read from shared memory once, not in every step
//   totals_in_shared  where sums of weights wait between two steps, of tiles that want for registers
//   is_for          the compute capabilities that are given the tile; `masked`: later queries see more keys
//
// After FlashAttention-2's tables, whose ablations say what others cost: four warps of 32 queries are faster than eight of
// 16 as long as their answers fit registers. https://arxiv.org/abs/2307.08691
#pragma once

#include "tile/shared_limits.h"

namespace warpsmith {

struct ForwardTile {
  static constexpr int bm = 128, bn = 64, warps = 4, stages = 2, blocks = 2;
  static constexpr bool q_in_registers = false, totals_in_shared = false;
  static constexpr bool is_for(int sm, bool) { return !has_little_shared_memory(sm); }
};

struct Forward64 : ForwardTile {
  static constexpr int d = 64, dv = 64, bn = 128;
};
struct Forward96 : ForwardTile {
  static constexpr int d = 96, dv = 96;
};
// 96 KB, of which sm_80 holds one block.
struct Forward128 : ForwardTile {
  static constexpr int d = 128, dv = 128;
  static constexpr bool totals_in_shared = true;
  static constexpr bool is_for(int sm, bool) { return sm >= 90 && !has_little_shared_memory(sm); }
};
struct Forward128Sm80 : Forward128 {
  static constexpr int stages = 1;
  static constexpr bool is_for(int sm, bool) { return sm < 90 && !has_little_shared_memory(sm); }
};
// Multi-head latent attention, before its keys are absorbed.
struct Forward192Values128 : ForwardTile {
  static constexpr int d = 192, dv = 128, warps = 8, blocks = 1;
};
struct Forward192 : ForwardTile {
  static constexpr int d = 192, dv = 192, warps = 8, blocks = 1;
};
// Two blocks of four warps, which do not wait for each other.
struct Forward256 : ForwardTile {
  static constexpr int d = 256, dv = 256, bm = 64, stages = 1;
  static constexpr bool is_for(int sm, bool) { return sm >= 90 || has_little_shared_memory(sm); }
};
struct Forward256Sm80 : Forward256 {
  static constexpr int bm = 128, warps = 8, blocks = 1;
  static constexpr bool is_for(int sm, bool) { return sm < 90 && !has_little_shared_memory(sm); }
};

// In 99 KB a block, 100 KB a multiprocessor.
template <class Tile>
struct ForwardLittle : Tile {
  static constexpr int stages = 1;
  static constexpr bool totals_in_shared = false;
  static constexpr bool is_for(int sm, bool) { return has_little_shared_memory(sm); }
};
struct Forward64Little : ForwardTile {
  static constexpr int d = 64, dv = 64;
  static constexpr bool is_for(int sm, bool) { return has_little_shared_memory(sm); }
};
struct Forward128Little : ForwardTile {
  static constexpr int d = 128, dv = 128, bn = 32, stages = 1;
  static constexpr bool is_for(int sm, bool masked) { return has_little_shared_memory(sm) && !masked; }
};
struct Forward128LittleMasked : ForwardTile {
  static constexpr int d = 128, dv = 128, bm = 64, stages = 1;
  static constexpr bool is_for(int sm, bool masked) { return has_little_shared_memory(sm) && masked; }
};

// With every option: half the queries a warp, which leaves registers for what options compute.
template <class Tile>
struct ForwardOptions : Tile {
  static constexpr int bm = 64, bn = 64, warps = 4, stages = 1, blocks = Tile::d <= 128 ? 3 : 2;
  static constexpr bool totals_in_shared = false;
  static constexpr bool is_for(int, bool) { return true; }
};

// Whether a GPU that runs the code being compiled may be given the tile. Code for 8.6 runs on 8.7 too.
template <class Tile>
constexpr bool may_run(int sm) {
  return Tile::is_for(sm, false) || Tile::is_for(sm, true) || (sm == 86 && may_run<Tile>(87));
}

template <class Tile>
inline constexpr int kForwardBytes = 2 * (Tile::bm * Tile::d + Tile::stages * Tile::bn * (Tile::d + Tile::dv)) + 256 +
                                     (Tile::totals_in_shared ? 16 * 32 * Tile::warps - 128 : 0);

}  // namespace warpsmith
