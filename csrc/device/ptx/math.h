// The special-function unit, one instruction each.
// PTX ISA, "Floating Point Instructions: ex2, rcp, rsqrt":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2
#pragma once

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

}  // namespace warpsmith::ptx
