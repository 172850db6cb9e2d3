// Products of groups of 16-bit values by wgmma (gemm/wgmma_groups.cuh), for the tiles of the menu (wgmma_plan.h).
#pragma once

#include "gemm/grouped_matmul/wgmma_tiles.h"
#include "gemm/wgmma_groups.cuh"
#include "host/launch.h"

namespace warpsmith {

template <class T, Along a, Along b, WgmmaTile tile, bool along_k_>
struct GroupedConfig : WgmmaConfig<T, a, b, GroupedPlan<tile>> {
  using Base = WgmmaConfig<T, a, b, GroupedPlan<tile>>;
  static constexpr bool swapped = tile.swapped, along_k = along_k_;
  static constexpr int threads = (1 + Base::warpgroups) * kWarpgroup;

  struct Shared {
    typename Base::Stage ring[Base::stages];
    typename GroupBoxes<GroupedConfig>::Shared staged[Base::warpgroups];
    WgmmaRing<Base::stages> barriers;
    GroupTable table;
  };
  static_assert(sizeof(Shared) <= kSharedOfSm90, "a block of sm_90 has room for the ring");

#if WARPSMITH_HAS_WGMMA
  template <class Issued>
  __device__ __forceinline__ static void multiply(typename Base::Sums& sums, const WgmmaReader<GroupedConfig>& reader,
                                                  Shared& shared, const GroupItem&, RingSlot<Base::stages>& at,
                                                  int steps, Issued&& issued) {
    multiply_steps<GroupedConfig>(sums, reader, shared.barriers, at, steps, issued);
  }
  template <int values>
  __device__ __forceinline__ static void finish(float (&sums)[values], const GroupedArgs&, const GroupItem& item, int,
                                                int) {
    if (!along_k || item.first < item.end) return;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  }
  __device__ __forceinline__ static uint32_t pack(const GroupedArgs&, float low, float high) {
    return pack_pair<T>(low, high);
  }
#endif
};

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    grouped_matmul_wgmma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
                                [[maybe_unused]] const __grid_constant__ CUtensorMap b,
                                [[maybe_unused]] const __grid_constant__ CUtensorMap d,
                                [[maybe_unused]] const __grid_constant__ GroupedArgs p,
                                [[maybe_unused]] const __grid_constant__ GroupedWork work) {
#if WARPSMITH_HAS_WGMMA
  multiply_groups<Config>(a, b, d, p, work);
#endif
}

template <class Config>
void launch_grouped_kernel(const GroupedArgs& p, cudaStream_t stream) {
  const GroupedWork work = grouped_work<Config>(p.groups, p.m, p.n, p.along_k ? 1 : p.k, p.w.batch == 0);
  const CUtensorMap d = tensor_map(map_of_groups<Config>(p, p.dtype));
  CUtensorMap x, w;
  if constexpr (Config::along_k) {
    x = tensor_map(map_of_rows(p.x.data, p.dtype, p.k, p.m, p.x.ld, Config::bk));
    w = tensor_map(map_of_rows(p.w.data, p.dtype, p.k, p.n, p.w.ld, Config::bk));
  } else {
    using X = std::conditional_t<Config::swapped, typename Config::B, typename Config::A>;
    using W = std::conditional_t<Config::swapped, typename Config::A, typename Config::B>;
    x = tensor_map(map_operand<X, 1>(p.x, p.dtype, p.m, p.k));
    w = tensor_map(map_of_operand<W, 1>(p.w, tensor_map_type(p.dtype), p.groups.count, p.n, p.k));
  }
  const LaunchConfig config = grouped_launch<Config>(work, p.sm_count);
  if constexpr (Config::swapped) {
    warpsmith::launch<&grouped_matmul_wgmma_kernel<Config>>(config, stream, w, x, d, p, work);
  } else {
    warpsmith::launch<&grouped_matmul_wgmma_kernel<Config>>(config, stream, x, w, d, p, work);
  }
}

template <WgmmaTile tile>
void launch_grouped_tile(const GroupedArgs& p, cudaStream_t stream) {
  const auto of_type = [&]<class T>() {
    if (p.along_k) {
      if constexpr (tile.swapped) {
        broken_promise("a tile for groups of rows");
      } else {
        return launch_grouped_kernel<GroupedConfig<T, Along::mn, Along::mn, tile, true>>(p, stream);
      }
    }
    const auto of_layout = [&]<Along w>() {
      constexpr Along kA = tile.swapped ? w : Along::k, kB = tile.swapped ? Along::k : w;
      launch_grouped_kernel<GroupedConfig<T, kA, kB, tile, false>>(p, stream);
    };
    p.w.order == Order::columns ? of_layout.template operator()<Along::k>()
                                : of_layout.template operator()<Along::mn>();
  };
  p.dtype == Dtype::f16 ? of_type.template operator()<f16>() : of_type.template operator()<bf16>();
}

}  // namespace warpsmith
