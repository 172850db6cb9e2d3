// Reductions over a thread-block cluster (sm_90): one value per block, exchanged through distributed shared memory.
// CUDA C++ Programming Guide, "Distributed Shared Memory".
#pragma once

#include <cstdint>

#include "device/ptx/barrier.h"
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
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// The same without ordering any memory: only that every block has come this far.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Writes 4 bytes to the same shared-memory variable in block `rank` of the cluster.
__device__ __forceinline__ void store_remote(float* local, int rank, float value) {
  const uint32_t address = ptx::shared_address(local);
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

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// By one thread, with a cluster barrier (relaxed will do) before the first store: an mbarrier that serves once, for stores of
// so many bytes from the blocks of the cluster, which signal their own arrival.
__device__ __forceinline__ void expect_stores(uint64_t* arrived, int bytes) {
  ptx::mbarrier_init(arrived, 1);
  ptx::fence_mbarrier_init();
  ptx::mbarrier_arrive_expect(arrived, bytes);
}

// By the lanes of one warp of block `rank`: its value to every block's `all`, counted on the mbarrier `arrived` there, which
// the warp also lets expect the values of all blocks.
template <int cluster, class Value>
__device__ __forceinline__ void share_in_cluster(Value (&all)[cluster], int rank, int lane, uint64_t* arrived,
                                                 const Value& value) {
  static_assert(sizeof(Value) % sizeof(float) == 0 && cluster <= kWarp, "a struct of floats, a lane for each block");
  if (lane == 0) ptx::mbarrier_arrive_expect(arrived, cluster * static_cast<int>(sizeof(Value)));
  if (lane < cluster) {
    auto* to = reinterpret_cast<float*>(&all[rank]);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Value) / sizeof(float)); ++i) {
      ptx::store_async(to + i, arrived, lane, reinterpret_cast<const float*>(&value)[i]);
    }
  }
}

#endif

// Shared memory of one cluster reduction; each instance serves once.
template <int threads, int cluster>
struct ClusterReduceStorage {
  float partial[cluster * (threads / kWarp)];  // [cluster, warps]
  uint64_t arrived;                            // mbarrier: all partials of the cluster have landed here
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Before cluster_sum, with a cluster barrier (relaxed will do) between the two: no block may send before every block
// expects.
template <int threads, int cluster>
__device__ __forceinline__ void cluster_sum_prepare(ClusterReduceStorage<threads, cluster>& shared) {
  if (threadIdx.x != 0) return;
  expect_stores(&shared.arrived, cluster * static_cast<int>(blockDim.x / kWarp * sizeof(float)));
}

// Sums `value` over every thread of the cluster; every thread gets the result, added in the same order everywhere.
// Each warp sends its sum to every block. The stores themselves signal their arrival, so nobody waits for a fence, and a
// block that has received everything may end: nothing more is sent to it.
template <int threads, int cluster>
__device__ __forceinline__ float cluster_sum(float value, ClusterReduceStorage<threads, cluster>& shared) {
  static_assert(cluster > 1 && cluster <= kWarp, "lane i of a warp writes to block i of a real cluster");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  value = warp_reduce(value);
  if (lane < cluster) ptx::store_async(&shared.partial[cluster_rank() * warps + warp], &shared.arrived, lane, value);
  ptx::mbarrier_wait_cluster(&shared.arrived, 0);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < cluster * (threads / kWarp); i += kWarp) {
    if (i + lane < cluster * warps) sum += shared.partial[i + lane];
  }
  return warp_reduce(sum);
}

#endif

}  // namespace warpsmith
