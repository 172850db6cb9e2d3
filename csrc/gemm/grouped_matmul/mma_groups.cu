// Products of groups by mma.sync: blocks that stay, each of which walks the tiles of all groups.
//   Against `naive`: the tile of matmul's `mma_peak`. The GPU alone knows how many tiles there are: a block counts them, group
//   by group, in shared memory, where it finds the group of its tile by halving. A tile's rows past the end of its group
//   are zeros, and are not stored.
//   Occupancy: 2 blocks of 4 warps in 50 KB, or for few rows a group in 62 KB; one on sm_89.
//   Bound: the tensor cores as mma.sync reaches them; few rows a group the weights.
#include <algorithm>

#include "gemm/grouped_matmul/grouped_matmul.h"
#include "gemm/groups.cuh"
#include "gemm/mma_tile.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct ManyRows {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 2, stages = 3, blocks = 2;
};
struct FewRows {
  static constexpr int bm = 32, bn = 128, bk = 64, warps_m = 1, warps_n = 4, stages = 3, blocks = 2;
};

struct Extent {
  int64_t m, n;
};

template <class T, class Config, bool along_k>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    grouped_matmul_mma_groups_kernel(const GroupedArgs p) {
  using Tile = typename Config::Tile;
  extern __shared__ __align__(128) uint4 ring[];
  __shared__ GroupTable table;
  const int across = static_cast<int>(ceil_div(p.n, Tile::bn)), groups = static_cast<int>(p.groups.count);
  const int tiles = static_cast<int>(ceil_div(p.m, Tile::bm)) * across;  // of a group along k
  if constexpr (!along_k) table.fill(p.groups, Tile::bm, Config::threads);
  const int count = along_k ? groups * tiles : table.before[groups] * across;

#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < count; index += static_cast<int>(gridDim.x)) {
    const int group = along_k ? index / tiles : table.group_of(index / across, groups);
    const int within = index - (along_k ? group * tiles : table.before[group] * across);
    const GroupSpan span = span_of(p.groups, group);
    const int64_t length = span.end - span.first;
    const Extent extent{along_k ? p.m : length, p.n};
    const Place<Tile> block(extent.m, extent.n, within, 1, 0);
    const WarpPlace<Tile> warp;
    Matrix x = p.x, w = p.w;
    w.data = static_cast<const T*>(w.data) + group * w.batch;
    x.data = static_cast<const T*>(x.data) + (along_k ? 0 : span.first * x.ld);
    const int64_t first_k = along_k ? span.first : 0, depth = along_k ? length : p.k;

    WarpSums<T, float, Tile> sums;
    multiply_tile<Config, T>(sums, ring, {x, w, extent.m, extent.n, first_k, depth}, block, warp);
    T* d = static_cast<T*>(p.d) + (along_k ? group * p.m : span.first) * p.n;
    store_finished<32>(d, extent, NoFinisher<T>{}, sums, ring, block, thread_again());
    __syncthreads();  // what was stored has left the ring
  }
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
    static_assert(Config::shared + sizeof(GroupTable) <= kSharedOfSm89, "a block of every GPU has room for the ring");
    const int64_t down = ceil_div(p.m, Tile::bm), across = ceil_div(p.n, Tile::bn);
    const int64_t tiles = along_k ? p.groups.count * down * across : (down + p.groups.count) * across;  // at most
    const LaunchConfig config{.grid = static_cast<unsigned>(std::min<int64_t>(tiles, p.sm_count * Tile::blocks)),
                              .block = Config::threads,
                              .dynamic_smem = Config::shared};
    warpsmith::launch<&grouped_matmul_mma_groups_kernel<T, Config, along_k>>(config, stream, p);
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
  constexpr int64_t kFew = 48;  // rows of a group
  !p.along_k&& p.m < kFew* p.groups.count ? launch_tile<FewRows>(p, stream) : launch_tile<ManyRows>(p, stream);
}

const Register<GroupedArgs> registered{"mma_groups", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
