// One small struct of every block of a cluster, brought to all of them (sm_90). As in cluster_sum, the stores signal
// their own arrival: nobody waits for a fence, and a block that has received everything may end.
// CUDA C++ Programming Guide, "Distributed Shared Memory".
#pragma once

#include <bit>
#include <cstdint>

#include "device/cluster.h"

namespace warpsmith {

inline constexpr int kMostClusterBlocks = 16;

// Shared memory of one gathering; each instance serves once.
template <class Value>
struct ClusterGather {
  Value values[kMostClusterBlocks];  // [cluster]
  uint64_t arrived;                  // mbarrier: every block's value has landed here
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Before cluster_gather, with a cluster barrier (relaxed will do) between the two: no block may send before every block
// expects.
template <class Value>
__device__ __forceinline__ void cluster_gather_prepare(ClusterGather<Value>& shared, int cluster) {
  if (threadIdx.x != 0) return;
  expect_stores(&shared.arrived, cluster * static_cast<int>(sizeof(Value)));
}

// Sends the block's value, the same in every thread, and returns once shared.values holds those of all blocks by rank.
template <class Value>
__device__ __forceinline__ void cluster_gather(const Value& value, ClusterGather<Value>& shared, int cluster) {
  static_assert(sizeof(Value) % sizeof(float) == 0, "a struct of floats");
  struct Floats {
    float at[sizeof(Value) / sizeof(float)];
  };
  const int receiver = threadIdx.x;
  if (receiver < cluster) {
    const Floats floats = std::bit_cast<Floats>(value);
    float* to = reinterpret_cast<float*>(&shared.values[cluster_rank()]);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Value) / sizeof(float)); ++i) {
      ptx::store_async(to + i, &shared.arrived, receiver, floats.at[i]);
    }
  }
  ptx::mbarrier_wait_cluster(&shared.arrived, 0);
}

#endif

}  // namespace warpsmith
