// Copies by threads from global to shared memory that bypass the registers and complete in the background.
// PTX ISA, "cp.async":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#pragma once

#include <cstdint>

#include "device/ptx/memory.h"

namespace warpsmith::ptx {

// 16 bytes, both sides aligned to 16; not kept in L1.
__device__ __forceinline__ void cp_async(uint4* shared, const uint4* global) {
  const uint32_t to = shared_address(shared);
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

// 16 bytes, both sides aligned to 16; not kept in L1, and in L2 as the policy says.
__device__ __forceinline__ void cp_async_with_policy(uint4* shared, const uint4* global, uint64_t policy) {
  const uint32_t to = shared_address(shared);
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "l"(policy)
               : "memory");
}

// The same where `go`; else nothing is read or written. Predicated, as cp_async_if.
__device__ __forceinline__ void cp_async_with_policy_if(bool go, uint4* shared, const uint4* global, uint64_t policy) {
  const uint32_t to = shared_address(shared);
  asm volatile(
      "{.reg .pred go; setp.ne.b32 go, %3, 0; @go cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;}" ::"r"(
          to),
      "l"(global), "l"(policy), "r"(static_cast<int>(go))
      : "memory");
}

// Both sides aligned to 8; passes through L1, as all copies below 16 bytes do.
__device__ __forceinline__ void cp_async_with_policy(uint2* shared, const uint2* global, uint64_t policy) {
  const uint32_t to = shared_address(shared);
  asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 8, %2;" ::"r"(to), "l"(global), "l"(policy)
               : "memory");
}

// The same where `go`; else nothing is read or written. Predicated, as cp_async_if.
__device__ __forceinline__ void cp_async_with_policy_if(bool go, uint2* shared, const uint2* global, uint64_t policy) {
  const uint32_t to = shared_address(shared);
  asm volatile(
      "{.reg .pred go; setp.ne.b32 go, %3, 0; @go cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 8, %2;}" ::"r"(
          to),
      "l"(global), "l"(policy), "r"(static_cast<int>(go))
      : "memory");
}

// Where a flag says so. Predicated, not branched around: the loop they stand in stays one basic block, in which the
// compiler is free to place them among other instructions.

// 16 bytes, both sides aligned to 16; not kept in L1. Where not `go`, nothing is read or written.
__device__ __forceinline__ void cp_async_if(bool go, uint4* shared, const uint4* global) {
  const uint32_t to = shared_address(shared);
  asm volatile("{.reg .pred go; setp.ne.b32 go, %2, 0; @go cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(to),
               "l"(global), "r"(static_cast<int>(go))
               : "memory");
}

// 4 bytes, both sides aligned to 4; passes through L1.
__device__ __forceinline__ void cp_async_if(bool go, uint32_t* shared, const uint32_t* global) {
  const uint32_t to = shared_address(shared);
  asm volatile("{.reg .pred go; setp.ne.b32 go, %2, 0; @go cp.async.ca.shared.global [%0], [%1], 4;}" ::"r"(to),
               "l"(global), "r"(static_cast<int>(go))
               : "memory");
}

// 16 bytes, both sides aligned to 16; not kept in L1. Where not `valid`, zeros, and `global` is not read.
__device__ __forceinline__ void cp_async_zfill(uint4* shared, const uint4* global, bool valid) {
  const uint32_t to = shared_address(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid ? 16 : 0) : "memory");
}

// The same, kept in L2 as the policy says.
__device__ __forceinline__ void cp_async_zfill(uint4* shared, const uint4* global, bool valid, uint64_t policy) {
  const uint32_t to = shared_address(shared);
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(global),
               "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
}

// 8 bytes, both sides aligned to 8; passes through L1, as all copies below 16 bytes do.
__device__ __forceinline__ void cp_async_zfill(uint2* shared, const uint2* global, bool valid) {
  const uint32_t to = shared_address(shared);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(global), "r"(valid ? 8 : 0) : "memory");
}

// 4 bytes, both sides aligned to 4.
__device__ __forceinline__ void cp_async_zfill(uint32_t* shared, const uint32_t* global, bool valid) {
  const uint32_t to = shared_address(shared);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(valid ? 4 : 0) : "memory");
}

}  // namespace warpsmith::ptx
