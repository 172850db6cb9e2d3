// How L2 treats what a stream reads: where the inputs alone would fill L2, it keeps them and lets the results leave first, so
// that DRAM gets them in order and in bursts; a shorter stream leaves its results for whoever reads them next.
#pragma once

#include <cstdint>

#include "device/vec.h"

namespace warpsmith {

struct StreamPolicy {
  bool beyond_l2;
  uint64_t on_sm90;  // made on the host: to make a policy takes longer than all else that comes before a first load

  explicit StreamPolicy(int64_t input_bytes)
      : beyond_l2(input_bytes >= kL2Bytes), on_sm90(beyond_l2 ? ptx::kEvictLastOnSm90 : ptx::kEvictNormalOnSm90) {}

#ifdef __CUDACC__
  __device__ __forceinline__ uint64_t of_loads() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    return on_sm90;
#else
    return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal();
#endif
  }
#endif
};

}  // namespace warpsmith
