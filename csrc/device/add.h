// Addition in a type's own arithmetic, pairs of 16-bit values included.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace warpsmith {

// PyTorch compiles its extensions without the operators of the 16-bit types, which round as these functions do.
struct Add {
  template <class A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    if constexpr (std::is_same_v<A, __half> || std::is_same_v<A, __nv_bfloat16>) {
      return __hadd(a, b);
    } else if constexpr (std::is_same_v<A, __half2> || std::is_same_v<A, __nv_bfloat162>) {
      return __hadd2(a, b);
    } else {
      return a + b;
    }
  }
};

}  // namespace warpsmith
