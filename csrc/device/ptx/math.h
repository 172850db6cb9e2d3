// The special-function unit, and minima and maxima that NaN survives, one instruction each.
// PTX ISA, "Floating Point Instructions: ex2, rcp, max, min":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace warpsmith::ptx {

// 2^x; relative error 2^-22, subnormals kept.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x; relative error 2^-22, subnormal results become 0.
__device__ __forceinline__ float exp2_approx_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1/x within 1 ulp, subnormals kept.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1/x within 1 ulp; subnormal arguments and results become 0.
__device__ __forceinline__ float reciprocal_approx_ftz(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// As in PyTorch; fmaxf and fminf return the number.
__device__ __forceinline__ float max_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

__device__ __forceinline__ float min_nan(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}

// Of two 16-bit values in a word each. T: __half or __nv_bfloat16.
template <class T>
__device__ __forceinline__ uint32_t max_nan_x2(uint32_t a, uint32_t b) {
  uint32_t most;
  if constexpr (std::is_same_v<T, __half>) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  }
  return most;
}

template <class T>
__device__ __forceinline__ uint32_t min_nan_x2(uint32_t a, uint32_t b) {
  uint32_t least;
  if constexpr (std::is_same_v<T, __half>) {
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(least) : "r"(a), "r"(b));
  } else {
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(least) : "r"(a), "r"(b));
  }
  return least;
}

}  // namespace warpsmith::ptx
