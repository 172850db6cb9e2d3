// Reductions over a thread-block cluster (sm_90): one value per block, exchanged through distributed shared memory.
// CUDA C++ Programming Guide, "Distributed Shared Memory".
#pragma once

#include <cstdint>

#include "device/warp.h"

namespace warpsmith {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define WARPSMITH_HAS_CLUSTERS 1
#else
#define WARPSMITH_HAS_CLUSTERS 0
#endif

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// arrive: this thread's earlier writes are visible to the cluster after the matching wait.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Writes 4 bytes to the same shared-memory variable in block `rank` of the cluster.
__device__ __forceinline__ void store_remote(float* local, int rank, float value) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(local));
  asm volatile(
      "{\n"
      "  .reg .b32 remote;\n"
      "  mapa.shared::cluster.u32 remote, %0, %1;\n"
      "  st.shared::cluster.f32 [remote], %2;\n"
      "}" ::"r"(address),
      "r"(rank), "f"(value)
      : "memory");
}

#endif

// Shared memory of one cluster reduction; use each instance once between two cluster barriers.
template <int threads, int cluster>
struct ClusterReduceStorage {
  float partial[cluster * (threads / kWarp)];  // [cluster, warps]
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Sums `value` over every thread of the cluster; every thread gets the result, added in the same order everywhere.
// Each warp sends its sum to every block, so one cluster barrier is the only synchronisation.
template <int threads, int cluster>
__device__ __forceinline__ float cluster_sum(float value, ClusterReduceStorage<threads, cluster>& shared) {
  constexpr int kWarps = threads / kWarp, kPartials = cluster * kWarps;
  static_assert(cluster <= kWarp, "lane i of a warp writes to block i");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  value = warp_reduce(value);
  if (lane < cluster) store_remote(&shared.partial[cluster_rank() * kWarps + warp], lane, value);
  cluster_sync();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPartials; i += kWarp) {
    if (i + lane < kPartials) sum += shared.partial[i + lane];
  }
  return warp_reduce(sum);
}

#endif

}  // namespace warpsmith
