// The beginning of a kernel that is launched while the grid before it ends (LaunchConfig::early in host/launch.h).
#pragma once

#include "device/ptx/barrier.h"

namespace warpsmith {

// Before any access to global memory: the blocks have their places when the grid before is complete, and those of the
// next may take theirs as soon as there is room.
__device__ __forceinline__ void start_early() {
  ptx::allow_next_grid();
  ptx::wait_for_previous_grid();
}

}  // namespace warpsmith
