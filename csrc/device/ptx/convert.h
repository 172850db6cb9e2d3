// Conversions: fp8 pairs to and from wider types (one instruction from sm_89 on), rounding to TF32.
// PTX ISA, "cvt": https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
#pragma once

#include <cstdint>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
#define WARPSMITH_HAS_FP8_CVT 1
#else
#define WARPSMITH_HAS_FP8_CVT 0
#endif

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_FP8_CVT

// Two e4m3 values (low byte first) as half2 bits; exact.
__device__ __forceinline__ uint32_t half2_from_e4m3x2(uint16_t pair) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  return halves;
}

__device__ __forceinline__ uint32_t half2_from_e5m2x2(uint16_t pair) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(pair));
  return halves;
}

// Rounds to nearest even; beyond the largest finite value it saturates, infinities included.
__device__ __forceinline__ uint16_t e4m3x2_from_floats(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ uint16_t e5m2x2_from_floats(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

#endif

// Rounds to the 10 bits of mantissa that TF32 keeps, to nearest, ties away from zero.
__device__ __forceinline__ uint32_t tf32_from_float(float x) {
  uint32_t tf32;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(x));
  return tf32;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The same with ties to even, in one instruction where the other takes three. Infinities and NaN stay.
__device__ __forceinline__ uint32_t tf32_from_float_even(float x) {
  uint32_t tf32;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(x));
  return tf32;
}

#endif

}  // namespace warpsmith::ptx
