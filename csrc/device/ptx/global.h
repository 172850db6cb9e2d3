// Global-memory accesses with cache hints.
// PTX ISA, "Data Movement and Conversion Instructions: ld, st":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// Read-only for the life of the kernel, not kept in L1.
__device__ __forceinline__ uint4 load_streaming(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// How long L2 keeps a line. Lines that are kept last let whatever else passes through L2 leave at once: a stream of
// writes then reaches DRAM in order and in bursts instead of when its turn comes.
__device__ __forceinline__ uint64_t policy_evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t policy_evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t policy_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// What these two make on sm_90, for a host that hands a kernel its policy: making one takes longer than all else that comes
// before a first load. PTX promises no encoding; a self test compares.
inline constexpr uint64_t kEvictLastOnSm90 = 0x14f0000000000000, kEvictNormalOnSm90 = 0x16f0000000000000;

__device__ __forceinline__ uint4 load_streaming(const uint4* from, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(policy));
  return v;
}

// Written once and not read again soon.
__device__ __forceinline__ void store_streaming(uint4* to, const uint4& v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

}  // namespace warpsmith::ptx
