// Rounding to TF32 in one instruction (sm_90), where cvt.rna takes three.
// PTX ISA, "cvt": https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// To nearest, ties to even. Infinities and NaN stay.
__device__ __forceinline__ uint32_t tf32_from_float_even(float x) {
  uint32_t tf32;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(x));
  return tf32;
}

#endif

}  // namespace warpsmith::ptx
