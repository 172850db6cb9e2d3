// The index of a thread, for use after a main loop.
#pragma once

#include "device/warp.h"

namespace warpsmith {

// threadIdx.x by way of a shuffle, through which the compiler does not see: what follows from it is computed where it is
// used, not before a main loop, through which it would take registers. For whole warps.
__device__ __forceinline__ int thread_again() {
  const int thread = static_cast<int>(threadIdx.x);
  return __shfl_sync(kAllLanes, thread, thread);
}

}  // namespace warpsmith
