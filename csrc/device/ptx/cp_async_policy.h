// Copies from global to shared memory with an L2 policy; committed and awaited as those of cp_async.h.
// PTX ISA, "cp.async":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// 16 bytes, both sides aligned to 16; not kept in L1, and in L2 as the policy says.
__device__ __forceinline__ void cp_async_with_policy(uint4* shared, const uint4* global, uint64_t policy) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "l"(policy)
               : "memory");
}

// The same where `go`; else nothing is read or written. Predicated, as those of cp_async_if.h.
__device__ __forceinline__ void cp_async_with_policy_if(bool go, uint4* shared, const uint4* global, uint64_t policy) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{.reg .pred go; setp.ne.b32 go, %3, 0; @go cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;}" ::"r"(
          to),
      "l"(global), "l"(policy), "r"(static_cast<int>(go))
      : "memory");
}

}  // namespace warpsmith::ptx
