// A series of sums over a thread-block cluster (sm_90), for kernels that walk over rows: nobody waits for a fence or for
// writes to global memory, as a cluster barrier would, only for the values themselves.
// CUDA C++ Programming Guide, "Distributed Shared Memory".
#pragma once

#include <cstdint>

#include "device/cluster.h"

namespace warpsmith {

// Shared memory of a series, whose every element sums up to `most` values at once. Two buffers take turns.
template <int threads, int cluster, int most = 1>
struct ClusterSums {
  float partial[2][most][cluster * (threads / kWarp)];  // [buffer, value, block of the cluster * warp]
  uint64_t arrived[2];                                  // mbarrier: all partials of the buffer's turn have landed here
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

template <int threads, int cluster, int most>
__device__ __forceinline__ void cluster_sums_expect(ClusterSums<threads, cluster, most>& shared, int buffer,
                                                    int values) {
  if (threadIdx.x != 0) return;
  const int floats = values * cluster * static_cast<int>(blockDim.x / kWarp);
  ptx::mbarrier_arrive_expect(&shared.arrived[buffer], floats * static_cast<int>(sizeof(float)));
}

// Before the first turn, with a cluster barrier (relaxed will do) between the two: no block may send before every block
// has its barriers. Even turns sum `even` values, odd ones `odd`.
template <int threads, int cluster, int most>
__device__ __forceinline__ void cluster_sums_prepare(ClusterSums<threads, cluster, most>& shared, int even = 1,
                                                     int odd = 1) {
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.arrived[0], 1);
    ptx::mbarrier_init(&shared.arrived[1], 1);
    ptx::fence_mbarrier_init();
  }
  cluster_sums_expect(shared, 0, even);
  cluster_sums_expect(shared, 1, odd);
}

// Sums each of `values` over every thread of the cluster; every thread gets the results, added in the same order
// everywhere. `turn` counts from 0. Two buffers are enough: a warp sends for turn + 2 only after every warp of the cluster
// has sent for turn + 1, hence read turn. A block may end after its last turn: nothing more is sent to it.
template <int threads, int cluster, int most, int n>
__device__ __forceinline__ void cluster_sum(float (&values)[n], ClusterSums<threads, cluster, most>& shared, int turn) {
  static_assert(cluster > 1 && cluster <= kWarp, "lane i of a warp writes to block i of a real cluster");
  static_assert(n <= most, "no room for so many values");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int buffer = turn & 1, parity = turn >> 1 & 1;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const float sum = warp_reduce(values[k]);
    float* mine = &shared.partial[buffer][k][cluster_rank() * warps + warp];
    if (lane < cluster) ptx::store_async(mine, &shared.arrived[buffer], lane, sum);
  }
  ptx::mbarrier_wait(&shared.arrived[buffer], parity);
  cluster_sums_expect(shared, buffer, n);  // for turn + 2
#pragma unroll
  for (int k = 0; k < n; ++k) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < cluster * (threads / kWarp); i += kWarp) {
      if (i + lane < cluster * warps) sum += shared.partial[buffer][k][i + lane];
    }
    values[k] = warp_reduce(sum);
  }
}

template <int threads, int cluster, int most>
__device__ __forceinline__ float cluster_sum(float value, ClusterSums<threads, cluster, most>& shared, int turn) {
  float values[1] = {value};
  cluster_sum(values, shared, turn);
  return values[0];
}

#endif

}  // namespace warpsmith
