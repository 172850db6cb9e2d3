// Barriers of some of a block's warps.
// PTX ISA, "bar.sync":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
#pragma once

namespace warpsmith::ptx {

// As __syncthreads(), which is barrier 0, for `threads` of the block's threads: whole warps. `barrier` is 1 to 15.
__device__ __forceinline__ void sync_warps(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace warpsmith::ptx
