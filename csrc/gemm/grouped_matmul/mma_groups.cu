// Products of groups by mma.sync: blocks that stay, each of which walks the tiles of all groups.
//   Against `naive`: the tile of matmul's `mma_peak`, by the walk of gemm/mma_groups.cuh.
//   Occupancy: 2 blocks of 4 warps in 50 KB, or for few rows a group in 62 KB; one on sm_89.
//   Bound: the tensor cores as mma.sync reaches them; few rows a group the weights.
#include "gemm/grouped_matmul/grouped_matmul.h"
#include "gemm/mma_groups.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct ManyRows {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 2, stages = 3, blocks = 2;
};
struct FewRows {
  static constexpr int bm = 32, bn = 128, bk = 64, warps_m = 1, warps_n = 4, stages = 3, blocks = 2;
};

template <class T, class Config, bool along_k>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    grouped_matmul_mma_groups_kernel(const GroupedArgs p) {
  using Tile = typename Config::Tile;
  extern __shared__ __align__(128) uint4 ring[];
  for_each_group_tile<Config, along_k>(p.groups, p.m, p.n, [&](const GroupTile<Tile>& tile) {
    const int64_t first = tile.span.first;
    Matrix x = p.x, w = p.w;
    w.data = static_cast<const T*>(w.data) + tile.group * w.batch;
    x.data = static_cast<const T*>(x.data) + (along_k ? 0 : first * x.ld);
    const TileOperands operands{x, w, tile.m, tile.n, along_k ? first : 0, along_k ? tile.span.end - first : p.k};

    WarpSums<T, float, Tile> sums;
    multiply_tile<Config, T>(sums, ring, operands, tile.block, WarpPlace<Tile>());
    T* d = static_cast<T*>(p.d) + (along_k ? tile.group * p.m : first) * p.n;
    store_finished<32>(d, tile, NoFinisher<T>{}, sums, ring, tile.block, thread_again());
    __syncthreads();  // what was stored has left the ring
  });
}

const char* takes(const GroupedArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_few_groups(p.groups)) return reason;
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_countable_tiles(p);
}

template <class Tile>
void launch_tile(const GroupedArgs& p, cudaStream_t stream) {
  const auto run = [&]<class T, Along a, Along b, bool along_k>() {
    using Config = MmaConfig<Tile, a, b>;
    launch_groups<&grouped_matmul_mma_groups_kernel<T, Config, along_k>, Config>(p, stream);
  };
  const auto of_type = [&]<class T>() {
    if constexpr (Tile::bm > FewRows::bm) {
      if (p.along_k) return run.template operator()<T, Along::mn, Along::mn, true>();
    }
    p.w.order == Order::columns ? run.template operator()<T, Along::k, Along::k, false>()
                                : run.template operator()<T, Along::k, Along::mn, false>();
  };
  p.dtype == Dtype::f16 ? of_type.template operator()<f16>() : of_type.template operator()<bf16>();
}

void launch(const GroupedArgs& p, cudaStream_t stream) {
  choose_group_tile<FewRows, ManyRows>(p, [&]<class Tile>() { launch_tile<Tile>(p, stream); });
}

const Register<GroupedArgs> registered{"mma_groups", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
