// Counting that hands over what was written before: the counts of one word order what surrounds them, with fewer fences
// than an atomicInc() between two __threadfence().
// PTX ISA, "atom": https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// Adds one, or goes back to zero from `last`; returns what was there. What this thread wrote before is seen by whoever
// counts later, and by those that it meets at a barrier.
__device__ __forceinline__ uint32_t inc_acq_rel(uint32_t* word, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(last) : "memory");
  return before;
}

}  // namespace warpsmith::ptx
