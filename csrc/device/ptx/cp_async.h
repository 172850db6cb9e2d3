// Copies from global to shared memory that bypass the registers and complete in the background.
// PTX ISA, "cp.async":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// 16 bytes, both sides aligned to 16; not kept in L1.
__device__ __forceinline__ void cp_async(uint4* shared, const uint4* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// Closes the group of this thread's copies since the last commit; an empty group is complete at once.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most `pending` of this thread's groups are incomplete. What has arrived is visible to this thread only.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
  static_assert(pending >= 0, "a number of groups");
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace warpsmith::ptx
