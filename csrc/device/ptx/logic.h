// Two logical operations on words in one instruction. The compiler makes two where both have a constant, as an instruction
// holds one; here the other one waits in a register.
// PTX ISA, "lop3": https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-lop3
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// (word & mask) | bits.
__device__ __forceinline__ uint32_t and_or(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(word), "r"(mask), "r"(bits));
  return d;
}

// (word & mask) ^ bits.
__device__ __forceinline__ uint32_t and_xor(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(word), "r"(mask), "r"(bits));
  return d;
}

}  // namespace warpsmith::ptx
