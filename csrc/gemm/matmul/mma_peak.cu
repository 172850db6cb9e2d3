// Matrix product by mma.sync for all four layouts, batches and epilogues: what m16n8k16 can do.
//   Against `mma_tn_stages_swizzle`: tiles up to 128 x 256, whose eight warps share more of what they load; copies of a
//   stage ahead spread between the groups of mma; operands that run along m or n are transposed by ldmatrix; results
//   leave in whole lines; the tile and the slices of k (split-K) are chosen by the shape and the GPU.
//   Occupancy: `Large` 8 warps of up to 255 registers in 144 KB, one block on sm_80 and sm_90; `Medium` 4 warps of up to
//   255 registers in 48 KB, two blocks on sm_80, sm_89 and sm_90; `Small` 4 warps of up to 128 registers in 48 KB, three
//   blocks on sm_80, two on sm_89, four on sm_90. Bound: the tensor cores as mma.sync reaches them.
#include "device/pipeline.h"
#include "gemm/split.cuh"
#include "gemm/store_staged.cuh"
#include "gemm/tensor_core.h"
#include "gemm/tile_copy.cuh"
#include "gemm/tile_origin.cuh"
#include "gemm/warp_mma.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Large {
  static constexpr int bm = 128, bn = 256, bk = 64, warps_m = 2, warps_n = 4, stages = 3, blocks = 1;
};
struct Medium {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 2, stages = 3, blocks = 2;
};
struct Small {
  static constexpr int bm = 64, bn = 64, bk = 64, warps_m = 2, warps_n = 2, stages = 3, blocks = 4;
};

template <class Tile_, Along a, Along b>
struct Config {
  using Tile = Tile_;
  using TileA = OperandTile<a, Tile::bm, Tile::bk, Swizzled>;
  using TileB = OperandTile<b, Tile::bn, Tile::bk, Swizzled>;
  static constexpr int threads = Share<Tile>::threads;
  static constexpr int shared = ring_bytes<Tile, Stage<uint16_t, TileA, TileB>>();
};

template <class T, class Acc, class Config>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    matmul_mma_peak_kernel(const GemmArgs p, const Split split) {
  using Tile = typename Config::Tile;
  using TileA = typename Config::TileA;
  using TileB = typename Config::TileB;
  constexpr int kSteps = Tile::bk / 16;
  static_assert(kSteps % 2 == 0, "fragments alternate");
  extern __shared__ __align__(128) uint4 ring[];
  auto* stages = reinterpret_cast<Stage<T, TileA, TileB>*>(ring);  // [Tile::stages]

  const Place<Tile> block(p);
  const int64_t first_k = blockIdx.y * split.depth;
  const int64_t depth = p.k - first_k < split.depth ? p.k - first_k : split.depth;
  const WarpPlace<Tile> warp;
  TileCopy<T, TileA, Config::threads> copy_a(p.a, block.batch(), p.m, block.m(), first_k);
  TileCopy<T, TileB, Config::threads> copy_b(p.b, block.batch(), p.n, block.n(), first_k);
  const FragmentReader<Side::a, TileA> read_a(warp.m);
  const FragmentReader<Side::b, TileB> read_b(warp.n);
  WarpSums<T, Acc, Tile> warp_sums;

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
    Stage<T, TileA, TileB>& to = stages[ahead.slot];
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
      warp_sums.add(fragments[step % 2]);
    }
  }

  // write
  ptx::cp_async_wait<0>();
  __syncthreads();  // the ring is free
  const Destination destination{
      .finish = finish_of(p, split),
      .slice = blockIdx.y,
      .batch = block.batch(),
      .m = block.m() + warp.m,
      .n = block.n() + warp.n,
  };
  auto* patch = reinterpret_cast<char*>(ring) + threadIdx.x / kWarp * StorePatch<Tile>::bytes;
  store_staged(p, warp_sums, patch, destination);
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_tiles_in_grid(p);
}

// Estimates; compared with each other, they choose the tile.
template <class Tile>
TileCost cost_of(const GemmArgs& p, int blocks, float alone, float full) {
  const float rate = p.sm == 80 ? 1.44e6f : (p.sm < 90 ? 1.28e6f : 2.1e6f);
  return {.bm = Tile::bm,
          .bn = Tile::bn,
          .bk = Tile::bk,
          .blocks = blocks,
          .alone = alone,
          .full = full,
          .fill = 128.0f,
          .rate = rate};
}

template <class Tile>
void launch_tile(const GemmArgs& p, const Split& split, cudaStream_t stream) {
  dispatch_tensor_core(p, [&]<class T, class Acc>() {
    dispatch_layout(p, [&]<Along a, Along b>() {
      using Chosen = Config<Tile, a, b>;
      warpsmith::launch<&matmul_mma_peak_kernel<T, Acc, Chosen>>(
          split_grid<Tile>(p, split, Chosen::threads, Chosen::shared), stream, p, split);
    });
    if (split.count > 1) sum_splits<T>(p, split.count, stream);
  });
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  Split split;
  const TileCost medium = cost_of<Medium>(p, 2, 0.5f, 0.76f);
  if (p.sm == 86 || p.sm == 89 || p.sm >= 120) {  // GPUs with 99 KB of shared memory for a block
    const TileCost tiles[] = {medium, cost_of<Small>(p, 2, 0.3f, 0.55f)};
    return best_tile(p, tiles, split) == 0 ? launch_tile<Medium>(p, split, stream)
                                           : launch_tile<Small>(p, split, stream);
  }
  const TileCost tiles[] = {cost_of<Large>(p, 1, 0.8f, 0.8f), medium,
                            cost_of<Small>(p, p.sm == 80 ? 3 : 4, 0.2f, 0.52f)};
  switch (best_tile(p, tiles, split)) {
    case 0:
      return launch_tile<Large>(p, split, stream);
    case 1:
      return launch_tile<Medium>(p, split, stream);
    default:
      return launch_tile<Small>(p, split, stream);
  }
}

const Register<GemmArgs> registered{"mma_peak", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
