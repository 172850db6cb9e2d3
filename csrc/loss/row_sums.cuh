// What a row of logits comes down to: its maximum, the sum of exponentials relative to it, and the plain sum. Sums over
// parts of a row join into those of the row, in any order: over threads, blocks and clusters.
// Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", https://arxiv.org/abs/1805.02867
#pragma once

#include <cmath>
#include <type_traits>

#include "device/cluster.h"
#include "device/convert.h"
#include "device/ptx/math.h"
#include "device/vec.h"
#include "device/warp.h"

namespace warpsmith {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLowest = -INFINITY;

// e^(x - base). The difference comes first: it is exact, or nearly so, where x and base are large.
__device__ __forceinline__ float exp_from(float x, float base) { return ptx::exp2_approx_ftz((x - base) * kLog2e); }

// What exponentials are relative to: the maximum, unless that is -inf, from which nothing can be subtracted.
__device__ __forceinline__ float base_of(float most) { return most == kLowest ? 0.0f : most; }

struct RowSums {
  float most;   // the largest value; NaN is passed over, and shows in `exps`
  float exps;   // sum of e^(x - base_of(most))
  float total;  // sum of x, where label smoothing asks for it
};

// The sums over no value at all.
__device__ __forceinline__ RowSums no_sums() { return {kLowest, 0.0f, 0.0f}; }

__device__ __forceinline__ RowSums join(const RowSums& a, const RowSums& b) {
  const float most = fmaxf(a.most, b.most), base = base_of(most);
  return {most, a.exps * exp_from(a.most, base) + b.exps * exp_from(b.most, base), a.total + b.total};
}

// The largest of n values, NaN passed over. 16-bit values are compared two at a time.
template <class T, int n>
__device__ __forceinline__ float largest(const Vec<T, n>& x) {
  if constexpr (std::is_same_v<T, float>) {
    float most = x[0];
#pragma unroll
    for (int i = 1; i < n; ++i) most = fmaxf(most, x[i]);
    return most;
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162>;
    Pair most = reinterpret_cast<const Pair&>(x[0]);
#pragma unroll
    for (int i = 2; i < n; i += 2) most = __hmax2(most, reinterpret_cast<const Pair&>(x[i]));
    return fmaxf(to_float(most.x), to_float(most.y));
  }
}

// The value that adds nothing to a maximum or to a sum of exponentials.
template <class T, int n>
__device__ __forceinline__ void fill_lowest(Vec<T, n>& x) {
#pragma unroll
  for (int i = 0; i < n; ++i) x[i] = from_float<T>(kLowest);
}

// Takes in the first `count` of n packs; the others must be filled with the lowest value. The maximum moves once for all
// of them. Smooth: std::true_type where the plain sum is wanted.
template <class Smooth, class T, int width, int n>
__device__ __forceinline__ void absorb(RowSums& sums, const Vec<T, width> (&x)[n], int count) {
  float most = sums.most;
#pragma unroll
  for (int i = 0; i < n; ++i) most = fmaxf(most, largest(x[i]));
  const float base = base_of(most);
  sums.exps *= exp_from(sums.most, base);
  sums.most = most;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    float values[width];
    to_float(values, x[i]);
    float exps = 0.0f;  // of its own, so that the packs' additions do not wait for each other
#pragma unroll
    for (int j = 0; j < width; ++j) exps += exp_from(values[j], base);
    sums.exps += exps;
    if constexpr (Smooth::value) {
      if (i < count) {
        float total = 0.0f;
#pragma unroll
        for (int j = 0; j < width; ++j) total += values[j];
        sums.total += total;
      }
    }
  }
}

template <class Smooth>
__device__ __forceinline__ void absorb(RowSums& sums, float x) {
  const float most = fmaxf(sums.most, x), base = base_of(most);
  sums.exps = sums.exps * exp_from(sums.most, base) + exp_from(x, base);
  sums.most = most;
  if constexpr (Smooth::value) sums.total += x;
}

// Over groups of `lanes` neighbours; every lane gets the result.
template <class Smooth, int lanes = kWarp>
__device__ __forceinline__ RowSums warp_join(const RowSums& own) {
  RowSums sums = no_sums();
  sums.most = warp_reduce<lanes>(own.most, Max{});
  sums.exps = warp_reduce<lanes>(own.exps * exp_from(own.most, base_of(sums.most)));
  if constexpr (Smooth::value) sums.total = warp_reduce<lanes>(own.total);
  return sums;
}

// Over the block; every thread gets the result, and may overwrite what any of them has read before. Two calls in a row
// need a barrier between them, or two buffers.
template <class Smooth>
__device__ __forceinline__ RowSums block_join(const RowSums& own, RowSums (&partial)[kWarp]) {
  const RowSums sums = warp_join<Smooth>(own);
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) {
    __syncwarp();
    return sums;
  }
  if (lane == 0) partial[threadIdx.x / kWarp] = sums;
  __syncthreads();
  return warp_join<Smooth>(lane < warps ? partial[lane] : no_sums());
}

// Shared memory of one join over a cluster; each instance serves once.
template <int threads, int cluster>
struct ClusterJoinStorage {
  static constexpr int kMostWarps = threads / kWarp;
  float most[cluster * kMostWarps], exps[cluster * kMostWarps], total[cluster * kMostWarps];  // [cluster, warps]
  uint64_t arrived;  // mbarrier: all partials of the cluster have landed here
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Before cluster_join, with a cluster barrier (relaxed will do) between the two: no block may send before every block
// expects.
template <class Smooth, int threads, int cluster>
__device__ __forceinline__ void cluster_join_prepare(ClusterJoinStorage<threads, cluster>& shared) {
  if (threadIdx.x != 0) return;
  constexpr int kValues = Smooth::value ? 3 : 2;
  expect_stores(&shared.arrived, cluster * kValues * static_cast<int>(blockDim.x / kWarp * sizeof(float)));
}

// Over every thread of the cluster; every thread gets the result, joined in the same order everywhere. The stores signal
// their own arrival, and a block that has received everything may end: nothing more is sent to it.
template <class Smooth, int threads, int cluster>
__device__ __forceinline__ RowSums cluster_join(const RowSums& own, ClusterJoinStorage<threads, cluster>& shared) {
  static_assert(cluster > 1 && cluster <= kWarp, "lane i of a warp writes to block i of a real cluster");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const RowSums mine = warp_join<Smooth>(own);
  if (lane < cluster) {
    const int slot = cluster_rank() * warps + warp;
    ptx::store_async(&shared.most[slot], &shared.arrived, lane, mine.most);
    ptx::store_async(&shared.exps[slot], &shared.arrived, lane, mine.exps);
    if constexpr (Smooth::value) ptx::store_async(&shared.total[slot], &shared.arrived, lane, mine.total);
  }
  ptx::mbarrier_wait_cluster(&shared.arrived, 0);
  RowSums sums = no_sums();
#pragma unroll
  for (int i = 0; i < cluster * (threads / kWarp); i += kWarp) {
    const int slot = i + lane;
    if (slot < cluster * warps) {
      sums = join(sums, {shared.most[slot], shared.exps[slot], Smooth::value ? shared.total[slot] : 0.0f});
    }
  }
  return warp_join<Smooth>(sums);
}

#endif

}  // namespace warpsmith
