// Copies from global to shared memory that write zeros in place of what is out of bounds; committed and awaited as
// those of cp_async.h.
// PTX ISA, "cp.async":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// 16 bytes, both sides aligned to 16; not kept in L1. Where not `valid`, zeros, and `global` is not read.
__device__ __forceinline__ void cp_async_zfill(uint4* shared, const uint4* global, bool valid) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid ? 16 : 0) : "memory");
}

// The same, kept in L2 as the policy says.
__device__ __forceinline__ void cp_async_zfill(uint4* shared, const uint4* global, bool valid, uint64_t policy) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(global),
               "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
}

// 8 bytes, both sides aligned to 8; passes through L1, as all copies below 16 bytes do.
__device__ __forceinline__ void cp_async_zfill(uint2* shared, const uint2* global, bool valid) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(global), "r"(valid ? 8 : 0) : "memory");
}

// 4 bytes, both sides aligned to 4.
__device__ __forceinline__ void cp_async_zfill(uint32_t* shared, const uint32_t* global, bool valid) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(valid ? 4 : 0) : "memory");
}

}  // namespace warpsmith::ptx
