// Loads of what several rows or blocks share: kept in L1, with a policy for L2.
// PTX ISA, "ld.global.nc":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld-global-nc
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

__device__ __forceinline__ uint32_t load_cached(const uint32_t* from, uint64_t policy) {
  uint32_t v;
  asm volatile("ld.global.nc.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(from), "l"(policy));
  return v;
}

__device__ __forceinline__ uint2 load_cached(const uint2* from, uint64_t policy) {
  uint2 v;
  asm volatile("ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from), "l"(policy));
  return v;
}

__device__ __forceinline__ uint4 load_cached(const uint4* from, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(policy));
  return v;
}

}  // namespace warpsmith::ptx
