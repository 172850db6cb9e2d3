// Products of groups of fp8 values by wgmma (gemm/wgmma_groups.cuh), for the tiles of the menu (wgmma_plan.h).
//   wgmma adds fp8 products to sums of which it keeps some 14 bits. So a step, a line of 128 values of k, is multiplied into
//   sums of its own, which threads then add in f32 (gemm/wgmma_apart.cuh), unless sums may stay.
#pragma once

#include "gemm/scaled_grouped_matmul/span.cuh"
#include "gemm/scaled_grouped_matmul/wgmma_tiles.h"
#include "gemm/wgmma_apart.cuh"
#include "gemm/wgmma_groups.cuh"
#include "host/launch.h"

namespace warpsmith {

// QA, QB: of the operands as the instruction sees them. `fast`: sums stay in the tensor cores.
template <class QA, class QB, WgmmaTile tile, bool fast, bool along_k_ = false>
struct ScaledGroupedConfig : WgmmaConfig<QA, Along::k, Along::k, GroupedPlan<tile>> {
  using Base = WgmmaConfig<QA, Along::k, Along::k, GroupedPlan<tile>>;
  using Kind = WgmmaKind<QA, QB>;
  using Sums = typename Base::Sums;
  static constexpr bool swapped = tile.swapped, along_k = along_k_;
  static constexpr int threads = (1 + Base::warpgroups) * kWarpgroup;

  struct Shared {
    typename Base::Stage ring[Base::stages];
    typename GroupBoxes<ScaledGroupedConfig>::Shared staged[Base::warpgroups];
    WgmmaRing<Base::stages> barriers;
    GroupTable table;
  };
  static_assert(sizeof(Shared) <= kSharedOfSm90, "a block of sm_90 has room for the ring");

#if WARPSMITH_HAS_WGMMA
  // All but the bytes `first` to `end` - 1 of lines, which are the group's. By all that multiply, who share the stage.
  __device__ __forceinline__ static void clear(typename Base::Stage& stage, int first, int end) {
    static_assert(!Base::turns && Base::warpgroups == 2);
    constexpr int kLine = 128, kChunks = kLine / 16, kThreads = Base::warpgroups * kWarpgroup;
    constexpr int kBarrier = 4;  // GroupBoxes has 2 and 3
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
#pragma unroll 1
    for (int i = thread; i < static_cast<int>(sizeof(stage)) / 16; i += kThreads) {
      const int line = i / kChunks, at = (i % kChunks ^ line % 8) * 16;  // as the copy engine swizzles
      if (first <= at && at + 16 <= end) continue;
      uint4& chunk = reinterpret_cast<uint4*>(stage.a)[i];  // b follows
      chunk = bytes_of(chunk, first - at, end - at);
    }
    ptx::fence_proxy_async();
    ptx::sync_warps(kBarrier, kThreads);
  }

  template <class Issued>
  __device__ __forceinline__ static void multiply(Sums& sums, const WgmmaReader<ScaledGroupedConfig>& reader,
                                                  Shared& shared, [[maybe_unused]] const GroupItem& item,
                                                  RingSlot<Base::stages>& at, int steps, Issued&& issued) {
    auto& ring = shared.barriers;
    if constexpr (fast) {
      multiply_steps<ScaledGroupedConfig>(sums, reader, ring, at, steps, issued);
    } else {
      clear_sums<ScaledGroupedConfig>(sums);
      multiply_apart<ScaledGroupedConfig, NoScales>(
          reader, ring, at, steps,
          [&](NoScales&, int step, const RingSlot<Base::stages>& stage) {
            if constexpr (along_k) {
              const int loaded = first_loaded<ScaledGroupedConfig>(item) + step * Base::bk;
              const int first = item.first - loaded, end = item.end - loaded;  // of the group, in lines of the stage
              if (first > 0 || end < Base::bk) {
                ring.wait(stage);
                return clear(shared.ring[stage.slot], first, end);
              }
            }
            ring.wait_unread(stage);
          },
          [&](const Sums& own, const NoScales&) { add_sums<ScaledGroupedConfig>(sums, own); });
      issued();
    }
  }

  // By the scales of rows and columns; without products zeros, whatever the scales.
  template <int values>
  __device__ __forceinline__ static void finish(float (&sums)[values], const ScaledGroupedArgs& p,
                                                const GroupItem& item, int m, int n) {
    const float* of_group = p.scale_w + item.group * p.group_w;
    const float* of_rows = along_k ? p.scale_x + item.group * p.group_x : p.scale_x;
    const bool empty = along_k && item.first == item.end;
    const int64_t end = empty ? 0 : along_k ? p.m : item.end, end_of_columns = empty ? 0 : p.n;
    const auto of_row = [&](int64_t row) { return row < end ? of_rows[row * p.step_x] : 0.0f; };
    const auto of_column = [&](int64_t col) { return col < end_of_columns ? of_group[col * p.step_w] : 0.0f; };
    float rows[2];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t at = m + Base::own_row(below);
      rows[below] = swapped ? of_column(at) : of_row(at);
    }
#pragma unroll
    for (int i = 0; i < values; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int64_t at = n + 2 * i + static_cast<int>(threadIdx.x) % 4 * 2 + e;
        const float scale = swapped ? of_row(at) : of_column(at);
#pragma unroll
        for (int below = 0; below < 2; ++below) sums[i + 2 * below + e] *= rows[below] * scale;
      }
    }
  }

  __device__ __forceinline__ static uint32_t pack(const ScaledGroupedArgs& p, float low, float high) {
    return p.out == Dtype::f16 ? pack_pair<f16>(low, high) : pack_pair<bf16>(low, high);
  }
#endif
};

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    scaled_grouped_matmul_wgmma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
                                       [[maybe_unused]] const __grid_constant__ CUtensorMap b,
                                       [[maybe_unused]] const __grid_constant__ CUtensorMap d,
                                       [[maybe_unused]] const __grid_constant__ ScaledGroupedArgs p,
                                       [[maybe_unused]] const __grid_constant__ GroupedWork work) {
#if WARPSMITH_HAS_WGMMA
  multiply_groups<Config>(a, b, d, p, work);
#endif
}

template <class Config>
void launch_scaled_grouped_kernel(const ScaledGroupedArgs& p, cudaStream_t stream) {
  using X = std::conditional_t<Config::swapped, typename Config::B, typename Config::A>;
  using W = std::conditional_t<Config::swapped, typename Config::A, typename Config::B>;
  const GroupedWork work = grouped_work<Config>(p.groups, p.m, p.n, Config::along_k ? 1 : p.k, p.w.batch == 0);
  const CUtensorMap x = tensor_map(map_operand<X, 1>(p.x, p.dtype, p.m, p.k)),
                    d = tensor_map(map_of_groups<Config>(p, p.out));
  CUtensorMap w;
  if constexpr (Config::along_k) {
    w = tensor_map(map_operand<W, 1>(p.w, p.dtype_w, p.n, p.k));
  } else {
    w = tensor_map(map_of_operand<W, 1>(p.w, tensor_map_type(p.dtype_w), p.groups.count, p.n, p.k));
  }
  const LaunchConfig config = grouped_launch<Config>(work, p.sm_count);
  warpsmith::launch<&scaled_grouped_matmul_wgmma_kernel<Config>>(config, stream, Config::swapped ? w : x,
                                                                 Config::swapped ? x : w, d, p, work);
}

template <WgmmaTile tile>
void launch_scaled_grouped_tile(const ScaledGroupedArgs& p, cudaStream_t stream) {
  constexpr bool kWide = tile.bn > 192;  // leaves no registers for a second set of sums
  dispatch_formats(p, [&]<class QX, class QW>() {
    using A = std::conditional_t<tile.swapped, QW, QX>;
    using B = std::conditional_t<tile.swapped, QX, QW>;
    if constexpr (!tile.swapped) {
      // Few rows wait for memory, not for additions.
      if (p.fast_accum) return launch_scaled_grouped_kernel<ScaledGroupedConfig<A, B, tile, true>>(p, stream);
    }
    if constexpr (kWide) {
      broken_promise("a tile for sums that stay in the tensor cores");
    } else {
      launch_scaled_grouped_kernel<ScaledGroupedConfig<A, B, tile, false>>(p, stream);
    }
  });
}

template <WgmmaTile tile>
void launch_scaled_along_k_tile(const ScaledGroupedArgs& p, cudaStream_t stream) {
  dispatch_formats(p, [&]<class QX, class QW>() {
    launch_scaled_grouped_kernel<ScaledGroupedConfig<QX, QW, tile, false, true>>(p, stream);
  });
}

}  // namespace warpsmith
