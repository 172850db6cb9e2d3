// How many blocks a persistent kernel starts: as many as are resident at once, so that none waits for another to end.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "host/launch.h"

namespace warpsmith {

// Shared memory that one block may ask for on the current device, in bytes.
inline int block_smem_limit() {
  int device = 0, bytes = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory limit");
  return bytes;
}

// Clusters (blocks where config.cluster is 1) of `kernel` that fit on the current device together. The block size
// must determine the shared memory; the answer is asked for once per device and block size. In a rehearsal: 1.
template <auto kernel>
int resident_clusters(LaunchConfig config) {
  if (Rehearsal::current() != nullptr) return 1;
  constexpr int kMaxDevices = 64, kMaxWarps = 32;
  static std::atomic<int> known[kMaxDevices][kMaxWarps + 1];
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  std::atomic<int>& count = known[device % kMaxDevices][config.block.x / 32];
  if (const int clusters = count.load(std::memory_order_relaxed)) return clusters;

  const auto function = reinterpret_cast<const void*>(kernel);
  if (config.dynamic_smem > 0) allow_dynamic_smem<kernel>(config.dynamic_smem, "shared memory of a persistent kernel");
  int clusters = 0;
  if (config.cluster == 1) {
    int blocks = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, static_cast<int>(config.block.x),
                                                             static_cast<size_t>(config.dynamic_smem)),
               "occupancy");
    clusters = blocks * device_info(device).sm_count;
  } else {
    allow_large_cluster(function, config.cluster, "cluster size");
    check_cuda(count_clusters(clusters, function, config), "occupancy of clusters");
  }
  if (clusters < 1) throw std::runtime_error("this GPU cannot hold a cluster of the kernel");
  count.store(clusters, std::memory_order_relaxed);
  return clusters;
}

}  // namespace warpsmith
