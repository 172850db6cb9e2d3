// Matrix product by mma.sync for all four layouts, batches and epilogues: what m16n8k16 can do.
//   Against `mma_tn_stages_swizzle`: tiles up to 128 x 256, whose eight warps share more of what they load; copies of a
//   stage ahead spread between the groups of mma; operands that run along m or n are transposed by ldmatrix; results
//   leave in whole lines; the tile and the slices of k (split-K) are chosen by the shape and the GPU.
//   Occupancy: the large tile 8 warps of up to 255 registers in 144 KB, one block on sm_80 and sm_90; the medium one 4
//   warps of up to 255 registers in 48 KB, two blocks on sm_80 and sm_89, or in 96 KB, two blocks on sm_90; the narrow one
//   4 warps of up to 168 registers in 72 KB, three blocks on sm_90; the small one 4 warps of up to 128 registers in 48 KB,
//   three blocks on sm_80, two on sm_89, four on sm_90.
//   Bound: the tensor cores as mma.sync reaches them; large products on sm_90 the power, which lowers the clock.
#include "gemm/mma_tile.cuh"
#include "gemm/split.cuh"
#include "gemm/store_staged.cuh"
#include "gemm/tensor_core.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class T, class Acc, class Config>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    matmul_mma_peak_kernel(const GemmArgs p, const Split split) {
  if constexpr (kMayRun<typename Config::Tile>) {
    using Tile = typename Config::Tile;
    extern __shared__ __align__(128) uint4 ring[];
    const Place<Tile> block(p.m, p.n);
    const WarpPlace<Tile> warp;
    const int64_t first_k = blockIdx.y * split.depth;
    const int64_t depth = p.k - first_k < split.depth ? p.k - first_k : split.depth;

    WarpSums<T, Acc, Tile> sums;
    multiply_tile<Config, T>(sums, ring, {p.a, p.b, p.m, p.n, first_k, depth}, block, warp);

    store_staged(p, split, sums, ring, block);
  }
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_tiles_in_grid(p);
}

// Estimates; compared with each other, they choose the tile. Fitted to 4,056 timings of every tile and split on an H200,
// where they choose 1.2 % worse than the best on average, 15 % at most; those of MediumTile keep their ratio to
// MediumDeepTile.
template <class Tile>
TileCost cost_of(const GemmArgs& p, int blocks, float alone, float full, float fill) {
  const float rate = p.sm == 80 ? 1.44e6f : (p.sm < 90 ? 1.28e6f : 2.1e6f);
  return {.bm = Tile::bm,
          .bn = Tile::bn,
          .bk = Tile::bk,
          .blocks = blocks,
          .alone = alone,
          .full = full,
          .fill = fill,
          .rate = rate};
}

// `most_shared`: of a block, on the least of the GPUs that the tile is for.
template <class Tile, int most_shared>
void launch_tile(const GemmArgs& p, const Split& split, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    dispatch_layout(p, [&]<Along a, Along b>() {
      using Config = MmaConfig<Tile, a, b>;
      static_assert(Config::shared <= most_shared, "a block of every GPU that the tile is for has room for the ring");
      warpsmith::launch<&matmul_mma_peak_kernel<T, Acc, Config>>(
          split_grid<Tile>(p, split, Config::threads, Config::shared), stream, with_wide_sums(p, split.count), split);
    });
    if (split.count > 1) p.wide ? sum_splits<float>(p, split.count, stream) : sum_splits<T>(p, split.count, stream);
  });
}

// The tiles that are for the GPU, what the product would cost with each, and how it is started.
struct Choice {
  TileCost costs[5];
  void (*launches[5])(const GemmArgs&, const Split&, cudaStream_t);
  int count = 0;

  template <class Tile, int most_shared>
  void add(const GemmArgs& p, const TileCost& cost) {
    if (!Tile::is_for(p.sm)) return;
    costs[count] = cost;
    launches[count++] = launch_tile<Tile, most_shared>;
  }
};

void launch(const GemmArgs& p, cudaStream_t stream) {
  // Shared memory: 48 KiB for each of four small blocks fit multiprocessors from sm_90 on, but for sm_120's.
  const bool roomy = !has_little_shared_memory(p.sm), four_small = roomy && p.sm >= 90;
  const TileCost small = cost_of<SmallTile>(p, 4, 0.284f, 0.57f, 174.0f);
  Choice tiles;
  tiles.add<LargeTile, kSharedOfSm80>(p, cost_of<LargeTile>(p, 1, 0.93f, 0.93f, 236.0f));
  tiles.add<MediumTile, kSharedOfSm89>(p, cost_of<MediumTile>(p, 2, 0.69f, 0.85f, 185.0f));
  tiles.add<MediumDeepTile, kSharedOfSm90>(p, cost_of<MediumDeepTile>(p, 2, 0.765f, 0.905f, 164.0f));
  tiles.add<NarrowTile, kSharedOfSm90>(p, cost_of<NarrowTile>(p, 3, 0.47f, 0.735f, 143.0f));
  tiles.add<SmallTile, kSharedOfSm89>(p, four_small ? small : with_fewer(small, roomy ? 3 : 2));
  Split split;
  const int best = best_tile(p, tiles.costs, split, tiles.count);
  tiles.launches[best](p, split, stream);
}

const Register<GemmArgs> registered{"mma_peak", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
