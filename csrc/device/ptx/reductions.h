// Additions in memory that nobody waits for (red), and how what came before them is seen.
// PTX ISA, "Parallel Synchronization and Communication Instructions: red":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// Of a word that blocks count in: what is there; and adding. What the thread wrote before it adds, and
// what those wrote that it met at a barrier since, is there for whoever loads the word then.
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

__device__ __forceinline__ void add_release(uint32_t* word, uint32_t by) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(by) : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// sm_90. Four neighbours, aligned to 16 bytes: each addition is indivisible, not all four together.
__device__ __forceinline__ void add_x4(float* to, const float (&by)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(by[0]), "f"(by[1]),
               "f"(by[2]), "f"(by[3])
               : "memory");
}

#endif

}  // namespace warpsmith::ptx
