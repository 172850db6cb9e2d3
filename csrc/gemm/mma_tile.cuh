// The main loop of the fastest mma.sync kernels: a block's tile of a product, from global memory to sums in registers.
#pragma once

#include <cstdint>

#include "device/pipeline.h"
#include "gemm/split.h"
#include "gemm/store_staged.cuh"
#include "gemm/tile_origin.cuh"
#include "tile/copy.cuh"
#include "tile/shared_limits.h"
#include "tile/warp_mma.cuh"

namespace warpsmith {

// The compute capability that this pass of the compiler makes code for, 90 for 9.0; 0 in the pass for the host.
#ifdef __CUDA_ARCH__
constexpr int kCompiledSm = __CUDA_ARCH__ / 10;
#else
constexpr int kCompiledSm = 0;
#endif

// `blocks`: that a multiprocessor of sm_90 holds, as far as registers go. bk in values of 16 bits. `is_for`: GPUs of which
// compute capabilities are given the tile.
struct LargeTile {
  static constexpr int bm = 128, bn = 256, bk = 64, warps_m = 2, warps_n = 4, stages = 3, blocks = 1;
  static constexpr bool is_for(int sm) { return !has_little_shared_memory(sm); }
};
struct MediumTile {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 2, stages = 3, blocks = 2;
  static constexpr bool is_for(int sm) { return sm < 90 || has_little_shared_memory(sm); }
};
// The same with half as many barriers, in twice the shared memory.
struct MediumDeepTile {
  static constexpr int bm = 128, bn = 128, bk = 64, warps_m = 2, warps_n = 2, stages = 3, blocks = 2;
  static constexpr bool is_for(int sm) { return !MediumTile::is_for(sm); }
};
// Three blocks, for products that are a few waves of tiles.
struct NarrowTile {
  static constexpr int bm = 64, bn = 128, bk = 64, warps_m = 1, warps_n = 4, stages = 3, blocks = 3;
  static constexpr bool is_for(int sm) { return !MediumTile::is_for(sm); }
};
struct SmallTile {
  static constexpr int bm = 64, bn = 64, bk = 64, warps_m = 2, warps_n = 2, stages = 3, blocks = 4;
  static constexpr bool is_for(int) { return true; }
};

// Whether a GPU that runs the code being compiled may be given the tile. Code for 8.6 runs on 8.7 too.
template <class Tile>
constexpr bool kMayRun = Tile::is_for(kCompiledSm) || (kCompiledSm == 86 && Tile::is_for(87));

template <class Tile_, Along a, Along b>
struct MmaConfig {
  using Tile = Tile_;
  using TileA = OperandTile<a, Tile::bm, Tile::bk, Swizzled>;
  using TileB = OperandTile<b, Tile::bn, Tile::bk, Swizzled>;
  static constexpr int threads = Share<Tile>::threads;
  static constexpr int shared = ring_bytes<Tile, Stage<uint16_t, TileA, TileB>>();
};

// What a tile is made of: operands whose lines are whole chunks of 16 bytes.
struct TileOperands {
  const Matrix &a, &b;
  int64_t m, n;      // of the whole product
  int64_t k, depth;  // where the sum starts, and over how many values of 16 bits it goes
};

// Adds up the block's tile of `depth` values of 16 bits along k, as `copy_a` and `copy_b` bring it (TileCopy). `ring`:
// Config::shared bytes, free again when the last of the block's warps returns.
template <class Config, class Unit, class Sums, class CopyA, class CopyB>
__device__ __forceinline__ void multiply_copies(Sums& sums, void* ring, CopyA& copy_a, CopyB& copy_b, int64_t depth,
                                                const WarpPlace<typename Config::Tile>& warp) {
  using Tile = typename Config::Tile;
  using TileA = typename Config::TileA;
  using TileB = typename Config::TileB;
  constexpr int kSteps = Tile::bk / 16;
  static_assert(kSteps % 2 == 0, "fragments alternate");
  auto* stages = static_cast<Stage<Unit, TileA, TileB>*>(ring);  // [Tile::stages]
  const FragmentReader<Side::a, TileA> read_a(warp.m);
  const FragmentReader<Side::b, TileB> read_b(warp.n);

  // fill all stages but one
#pragma unroll
  for (int slot = 0; slot < Tile::stages - 1; ++slot) {
    copy_a.start(stages[slot].a, depth - slot * Tile::bk);
    copy_b.start(stages[slot].b, depth - slot * Tile::bk);
    copy_a.advance();
    copy_b.advance();
    ptx::cp_async_commit();
  }
  ptx::cp_async_wait<Tile::stages - 2>();
  __syncthreads();

  // multiply
  Fragments<Share<Tile>::wm, Share<Tile>::wn> fragments[2];
  fragments[0].read(read_a, stages[0].a, read_b, stages[0].b, 0);
  RingSlot<Tile::stages> at, ahead{Tile::stages - 1};
  const int tiles = static_cast<int>(ceil_div(depth, Tile::bk));
  const int tail = static_cast<int>(depth - int64_t{tiles - 1} * Tile::bk);
  for (int tile = 0; tile < tiles; ++tile) {
    Stage<Unit, TileA, TileB>& to = stages[ahead.slot];
    const int tiles_after = tiles - tile - Tile::stages;
    const int k_ahead = tiles_after > 0 ? Tile::bk : (tiles_after == 0 ? tail : 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      copy_a.start(to.a, k_ahead, step, kSteps);
      copy_b.start(to.b, k_ahead, step, kSteps);
      const int next = (step + 1) % kSteps;
      if (next == 0) {
        copy_a.advance();
        copy_b.advance();
        ptx::cp_async_commit();
        at.advance();
        ahead.advance();
        ptx::cp_async_wait<Tile::stages - 2>();
        __syncthreads();  // the next stage is here, and what is left of this one is in registers
      }
      fragments[next % 2].read(read_a, stages[at.slot].a, read_b, stages[at.slot].b, 16 * next);
      sums.add(fragments[step % 2]);
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
}

template <class Config, class Unit, class Sums>
__device__ __forceinline__ void multiply_tile(Sums& sums, void* ring, const TileOperands& x,
                                              const Place<typename Config::Tile>& block,
                                              const WarpPlace<typename Config::Tile>& warp) {
  TileCopy<Unit, typename Config::TileA, Config::threads> copy_a(x.a, block.batch(), x.m, block.m(), x.k);
  TileCopy<Unit, typename Config::TileB, Config::threads> copy_b(x.b, block.batch(), x.n, block.n(), x.k);
  multiply_copies<Config, Unit>(sums, ring, copy_a, copy_b, x.depth, warp);
}

}  // namespace warpsmith
