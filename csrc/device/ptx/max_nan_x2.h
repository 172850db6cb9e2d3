// The maximum that NaN survives, of two 16-bit values in a word each.
// PTX ISA, "max": https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-max
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace warpsmith::ptx {

// T: __half or __nv_bfloat16.
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

}  // namespace warpsmith::ptx
