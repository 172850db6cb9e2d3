// Products of groups of fp8 rows by mma.sync m16n8k32: blocks that stay, each of which walks the tiles of all groups.
//   Against `naive`: the walk of gemm/mma_groups.cuh with the tiles and operands of scaled_matmul's `mma_fp8`. The fp8 tensor
//   cores of sm_89 keep few bits of a sum: it leaves them every 128 values of k.
//   Occupancy: 2 blocks of 4 warps in 48 KB, or for few rows a group in 61 KB; one of these on sm_89.
//   Bound: the tensor cores as mma.sync reaches them; few rows a group the weights.
#include "gemm/scaled_grouped_matmul/mma.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class Products, class Config>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    scaled_grouped_matmul_mma_groups_kernel(const ScaledGroupedArgs p) {
  using Tile = typename Config::Tile;
  extern __shared__ __align__(128) uint4 ring[];
  for_each_group_tile<Config, false>(p.groups, p.m, p.n, [&](const GroupTile<Tile>& tile) {
    const Matrix x = in_pairs(p.x, tile.span.first * p.x.ld), w = in_pairs(p.w, tile.group * p.w.batch);
    PromotedSums<Products, float, Tile> promoted;
    multiply_tile<Config, uint16_t>(promoted, ring, {x, w, tile.m, tile.n, 0, p.k / 2}, tile.block, WarpPlace<Tile>());
    promoted.finish();
    store_scaled(promoted.sums, p, tile, tile.span.first);
  });
}

const char* takes(const ScaledGroupedArgs& p) {
  if (const char* reason = needs_rows(p)) return reason;
  if (const char* reason = needs_few_groups(p.groups)) return reason;
  if (p.w.order != Order::columns) return "needs w column-major";
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_countable_tiles(p);
}

void launch(const ScaledGroupedArgs& p, cudaStream_t stream) {
  dispatch_formats(p, [&]<class QX, class QW>() {
    choose_group_tile<ScaledFewRows, ScaledManyRows>(p, [&]<class Tile>() {
      using Config = MmaConfig<Tile, Along::k, Along::k>;
      launch_groups<&scaled_grouped_matmul_mma_groups_kernel<Fp8Products<QX, QW>, Config>, Config>(p, stream);
    });
  });
}

const Register<ScaledGroupedArgs> registered{"mma_groups", /*min_sm=*/89, takes, launch};

}  // namespace
}  // namespace warpsmith
