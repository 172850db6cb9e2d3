// Products by wgmma whose warps have roles: one warpgroup copies, the others multiply and store.
//   Two warpgroups that take turns each have a tile of their own: while one stores, the other one multiplies.
#pragma once

#include "device/block_order.h"
#include "device/ptx/warpgroup.h"
#include "gemm/wgmma.h"
#include "gemm/wgmma_store.cuh"
#include "gemm/wgmma_tile.cuh"

namespace warpsmith {

// A rung's own has besides Store, what becomes of sums: a template over the configuration (gemm/wgmma_store.cuh).
struct RolesPlan : WgmmaPlan {
  static constexpr bool stays = false;  // a block takes tile after tile
  // Of a thread, from the start of its role on; 0: those of the launch.
  static constexpr int copier_registers = 0, multiplier_registers = 0;
};

// Two warpgroups that multiply, on the registers that the third gives up: 64,512 of a multiprocessor's 65,536 in all.
struct TwoMultiply : RolesPlan {
  static constexpr int warpgroups = 2, copier_registers = 40, multiplier_registers = 232;
};

// One, for which the launch gives enough registers.
struct OneMultiplies : RolesPlan {
  static constexpr int warpgroups = 1;
};

template <class T, Along a, Along b, class Plan>
struct WgmmaRoles : WgmmaConfig<T, a, b, Plan> {
  using Base = WgmmaConfig<T, a, b, Plan>;
  static constexpr int threads = (1 + Base::warpgroups) * kWarpgroup;
  using Store = typename Plan::template Store<WgmmaRoles>;

  struct Shared {
    typename Base::Stage ring[Base::stages];
    typename Store::Shared staged[Base::warpgroups];
    WgmmaRing<Base::stages> barriers;
  };
  static_assert(!Base::turns || Base::warpgroups == 2, "two take turns");
  static_assert(sizeof(Shared) <= kSharedOfSm90, "a block of sm_90 has room for the ring");
};

#if WARPSMITH_HAS_WGMMA

// Calls body(m, n) for the tiles of this block, one after another.
template <class Config, class Body>
__device__ __forceinline__ void for_each_tile(const WgmmaTiles& tiles, Body&& body) {
  const int rank = Config::cluster == 1 ? 0 : cluster_rank();
  const auto call = [&](int index) {
    const TileCoord tile = grouped_tile(index, tiles.down, tiles.across, tiles.group);
    body((static_cast<int>(tile.m) * Config::cluster + rank) * Config::bm, static_cast<int>(tile.n) * Config::bn);
  };
  const int first = static_cast<int>(blockIdx.x) / Config::cluster;
  if constexpr (Config::Plan::stays) {
    const int count = tiles.down * tiles.across, clusters = static_cast<int>(gridDim.x) / Config::cluster;
#pragma unroll 1
    for (int index = first; index < count; index += clusters) call(index);
  } else {
    call(first);
  }
}

// Two warpgroups that multiply by turns, the first one first. Without turns, one might wait for a stage so far ahead that the
// barrier's parity is that of an earlier one.
struct Turns {
  static constexpr int kFirst = 8;  // named barriers

  __device__ __forceinline__ static void begin(int warpgroup) {
    if (warpgroup == 1) pass(warpgroup);
  }
  __device__ __forceinline__ static void wait(int warpgroup) { ptx::sync_warps(kFirst + warpgroup, 2 * kWarpgroup); }
  __device__ __forceinline__ static void pass(int warpgroup) {
    ptx::arrive_warps(kFirst + (warpgroup ^ 1), 2 * kWarpgroup);
  }
};

// Past the stages of a tile that another warpgroup multiplies.
template <int stages>
__device__ __forceinline__ void skip(RingSlot<stages>& at, int steps) {
  const int slot = at.slot + steps;
  at.phase ^= slot / stages & 1;
  at.slot = slot % stages;
}

template <class Config>
__device__ __forceinline__ void multiply_by_roles(const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& d,
                                                  const WgmmaTiles& tiles) {
  extern __shared__ __align__(1024) uint4 memory[];
  auto& shared = *reinterpret_cast<typename Config::Shared*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;  // of those that multiply
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&a);
    ptx::prefetch_tensor_map(&b);
    if constexpr (Config::Store::by_map) ptx::prefetch_tensor_map(&d);
    constexpr int kReaders = (Config::turns ? 1 : Config::warpgroups) * (kWarpgroup / kWarp);
    shared.barriers.init(1, kReaders * Config::cluster);
    ptx::fence_mbarrier_init();
  }
  if constexpr (Config::cluster == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    cluster_sync();
  }
  RingSlot<Config::stages> at;
  if (warpgroup < 0) {
    ptx::lower_registers<Config::Plan::copier_registers>();
    if (threadIdx.x / kWarp == 0 && ptx::elect_lane()) {
      for_each_tile<Config>(tiles, [&](int m, int n) {
#pragma unroll 1
        for (int step = 0; step < tiles.steps; ++step, at.advance()) {
          uint64_t* full = shared.barriers.acquire(at);
          copy_stage<Config>(shared.ring[at.slot], a, b, m, n, step * Config::bk, full);
        }
      });
    }
    __syncwarp();
  } else {
    ptx::raise_registers<Config::Plan::multiplier_registers>();
    const int share = Config::turns ? 0 : warpgroup;  // of the rows
    const WgmmaReader<Config> reader(shared.ring, share);
    typename Config::Store store(shared.staged[warpgroup]);
    int turn = 0;
    if constexpr (Config::turns) Turns::begin(warpgroup);
    for_each_tile<Config>(tiles, [&](int m, int n) {
      if constexpr (Config::turns) {
        const bool mine = turn == warpgroup;
        turn ^= 1;
        if (!mine) return skip(at, tiles.steps);
        Turns::wait(warpgroup);
      }
      typename Config::Sums sums;
      multiply_steps<Config>(sums, reader, shared.barriers, at, tiles.steps, [&] {
        if constexpr (Config::turns) Turns::pass(warpgroup);
      });
      store.store(sums, tiles, d, m + share * Config::rows, n);
    });
    store.finish();
  }
  if constexpr (Config::cluster > 1) cluster_sync();  // neither block ends before the other has sent it all
}

#endif

// `kernel`: of the rung, which calls multiply_by_roles. `group`: rows of tiles, of a cluster each (device/block_order.h).
template <class Config, auto kernel>
void launch_roles(const GemmArgs& p, cudaStream_t stream, int group) {
  const WgmmaTiles tiles = tiles_of<Config>(p, group);
  const int count = tiles.down * tiles.across, most = std::max(1, p.sm_count / Config::cluster);
  const LaunchConfig config{
      .grid = static_cast<unsigned>((Config::Plan::stays ? std::min(most, count) : count) * Config::cluster),
      .block = Config::threads,
      .dynamic_smem = static_cast<int>(sizeof(typename Config::Shared)),
      .cluster = Config::cluster};
  const CUtensorMap a = map_a<Config>(p), b = map_b<Config>(p);
  CUtensorMap d = a;  // not read
  if constexpr (Config::Store::by_map) d = Config::Store::map(p);
  warpsmith::launch<kernel>(config, stream, a, b, d, tiles);
}

}  // namespace warpsmith
