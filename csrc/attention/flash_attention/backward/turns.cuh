// Blocks that add to the same sums in global memory, one after the other.
#pragma once

#include <cstdint>

#include "device/ptx/memory.h"
#include "device/ptx/reductions.h"

namespace warpsmith {

// Waits until `turn` blocks have passed. What they added before is there for this thread, and for those that it meets at a
// barrier afterwards.
__device__ __forceinline__ void await(const uint32_t* word, uint32_t turn) {
  while (ptx::load_acquire(word) != turn) __nanosleep(20);
}

// Counts this block, with all that the threads did which this one has met at a barrier.
__device__ __forceinline__ void pass(uint32_t* word) { ptx::add_release(word, 1); }

// Adds four neighbours, aligned to 16 bytes, without waiting for them.
__device__ __forceinline__ void add_in_memory(float* to, const float (&by)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  ptx::add_x4(to, by);
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(to + i, by[i]);
#endif
}

}  // namespace warpsmith
