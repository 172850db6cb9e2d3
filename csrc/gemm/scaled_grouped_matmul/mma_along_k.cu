// Products of groups along k of fp8 values, the gradient of the weights, by mma.sync m16n8k32.
//   Against `mma_groups`: every group has a product of its own, of all rows of x. Chunks that a group begins or ends in go
//   through registers, where what is another group's becomes zeros (span.cuh).
//   Occupancy: 2 blocks of 4 warps in 48 KB. Bound: the tensor cores as mma.sync reaches them.
#include "gemm/scaled_grouped_matmul/mma.cuh"
#include "gemm/scaled_grouped_matmul/span.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class Products, class Config>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    scaled_grouped_matmul_mma_along_k_kernel(const ScaledGroupedArgs p) {
  using Tile = typename Config::Tile;
  extern __shared__ __align__(128) uint4 ring[];
  for_each_group_tile<Config, true>(p.groups, p.m, p.n, [&](const GroupTile<Tile>& tile) {
    const auto [first, end] = tile.span;
    SpanCopy<typename Config::TileA, Config::threads> copy_x(in_pairs(p.x, 0), p.m, tile.block.m(), first, end);
    SpanCopy<typename Config::TileB, Config::threads> copy_w(in_pairs(p.w, 0), p.n, tile.block.n(), first, end);
    const int64_t depth = ceil_div(end - first / 16 * 16, 2);
    PromotedSums<Products, float, Tile> promoted;
    multiply_copies<Config, uint16_t>(promoted, ring, copy_x, copy_w, depth, WarpPlace<Tile>());
    promoted.finish();
    store_scaled(promoted.sums, p, tile, tile.group * p.m);
  });
}

const char* takes(const ScaledGroupedArgs& p) {
  if (const char* reason = needs_along_k(p)) return reason;
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_countable_tiles(p);
}

void launch(const ScaledGroupedArgs& p, cudaStream_t stream) {
  using Config = MmaConfig<ScaledManyRows, Along::k, Along::k>;
  dispatch_formats(p, [&]<class QX, class QW>() {
    launch_groups<&scaled_grouped_matmul_mma_along_k_kernel<Fp8Products<QX, QW>, Config>, Config>(p, stream);
  });
}

const Register<ScaledGroupedArgs> registered{"mma_along_k", /*min_sm=*/89, takes, launch};

}  // namespace
}  // namespace warpsmith
