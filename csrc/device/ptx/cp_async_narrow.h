// Copies of 8 bytes from global to shared memory; committed and awaited as those of cp_async.h.
// PTX ISA, "cp.async":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// Both sides aligned to 8; passes through L1, as all copies below 16 bytes do.
__device__ __forceinline__ void cp_async_with_policy(uint2* shared, const uint2* global, uint64_t policy) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 8, %2;" ::"r"(to), "l"(global), "l"(policy)
               : "memory");
}

// The same where `go`; else nothing is read or written. Predicated, as those of cp_async_if.h.
__device__ __forceinline__ void cp_async_with_policy_if(bool go, uint2* shared, const uint2* global, uint64_t policy) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{.reg .pred go; setp.ne.b32 go, %3, 0; @go cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 8, %2;}" ::"r"(
          to),
      "l"(global), "l"(policy), "r"(static_cast<int>(go))
      : "memory");
}

}  // namespace warpsmith::ptx
