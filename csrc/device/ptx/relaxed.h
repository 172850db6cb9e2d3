// Words that blocks of one grid leave for each other: indivisible, seen by the whole GPU, and ordering nothing else.
// PTX ISA, "Memory Consistency Model", and "ld", "st":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}

__device__ __forceinline__ void store_relaxed(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

}  // namespace warpsmith::ptx
