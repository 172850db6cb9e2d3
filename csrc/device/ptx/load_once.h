// 128-bit loads of what is touched once and may be overwritten by the kernel that reads it.
// PTX ISA, "Data Movement and Conversion Instructions: ld":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// Not kept in L1. Unlike ld.global.nc, it does not ask that the memory stay unchanged for the life of the kernel.
__device__ __forceinline__ uint4 load_once(const uint4* from, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(policy)
               : "memory");
  return v;
}

}  // namespace warpsmith::ptx
