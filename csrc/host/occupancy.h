// How many blocks a persistent kernel starts: as many as are resident at once, so that none waits for another to end.
#pragma once

#include "host/launch.h"

namespace warpsmith {

// Shared memory that one block may ask for on the current device, in bytes.
int block_smem_limit();

// What was found out about one kernel, shared by threads (KernelState).
class ResidentClusters {
 public:
  int of(const Kernel& kernel, const LaunchConfig& config);

 private:
  static constexpr int kMaxWarps = 32;
  int known_[KernelState::kMaxDevices][kMaxWarps + 1] = {};
};

// Clusters (blocks where one is a cluster) of `kernel` that fit on the current device together. The block size
// must determine the shared memory; the answer is asked for once per device and block size. In a rehearsal: 1.
template <auto kernel>
int resident_clusters(const LaunchConfig& config) {
  static constinit ResidentClusters known;
  return known.of(kernel_of<kernel>(), config);
}

}  // namespace warpsmith
