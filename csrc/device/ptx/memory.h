// Loads, stores and atomics in global memory with hints and orders that C++ has no words for; addresses of shared memory.
// PTX ISA, "Data Movement and Conversion Instructions: ld, st", "atom" and "Memory Consistency Model":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// Where `pointer`, into this block's shared memory, points as instructions have it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

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

// Touched once, and may be overwritten by the kernel that reads it: unlike ld.global.nc, it does not ask that the memory
// stay unchanged for the life of the kernel. Not kept in L1.
__device__ __forceinline__ uint4 load_once(const uint4* from, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(policy)
               : "memory");
  return v;
}

// 16 bytes that the compiler does not take apart, as it does with plain stores between branches.
__device__ __forceinline__ void store_at_once(uint4* to, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// What several rows or blocks share: kept in L1, with a policy for L2.
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

// Words that blocks of one grid leave for each other: indivisible, seen by the whole GPU, and ordering nothing else.
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}

__device__ __forceinline__ void store_relaxed(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Counting that hands over what was written before, with fewer fences than an atomicInc() between two __threadfence():
// adds one, or goes back to zero from `last`; returns what was there. What this thread wrote before is seen by whoever
// counts later, and by those that it meets at a barrier.
__device__ __forceinline__ uint32_t inc_acq_rel(uint32_t* word, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(last) : "memory");
  return before;
}

}  // namespace warpsmith::ptx
