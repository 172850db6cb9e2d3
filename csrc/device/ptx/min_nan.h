// The minimum that NaN survives, as in PyTorch; fminf returns the number.
// PTX ISA, "min": https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-min
#pragma once

namespace warpsmith::ptx {

__device__ __forceinline__ float min_nan(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}

}  // namespace warpsmith::ptx
