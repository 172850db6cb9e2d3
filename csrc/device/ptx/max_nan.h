// The maximum that NaN survives, as in PyTorch; fmaxf returns the number.
// PTX ISA, "max": https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-max
#pragma once

namespace warpsmith::ptx {

__device__ __forceinline__ float max_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

}  // namespace warpsmith::ptx
