// Maximum and minimum that pass NaN on, as PyTorch's do and fmaxf does not.
// PTX ISA, "Floating Point Instructions: max, min":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-max
#pragma once

namespace warpsmith::ptx {

__device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

__device__ __forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

}  // namespace warpsmith::ptx
