// The minimum that NaN survives, of two 16-bit values in a word each.
// PTX ISA, "min": https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-min
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace warpsmith::ptx {

// T: __half or __nv_bfloat16.
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
