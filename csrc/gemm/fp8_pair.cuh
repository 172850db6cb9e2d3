// Products by mma.sync m16n8k32 of fp8 operands, each in a format of its own.
#pragma once

#include <type_traits>

#include "device/convert.h"
#include "device/ptx/mma_formats.h"
#include "tile/warp_mma.cuh"

namespace warpsmith {

// In place of the type of both operands, where they are of two.
template <class A, class B>
struct Fp8Pair {};

template <class A, class B>
using Fp8Products = std::conditional_t<std::is_same_v<A, B>, A, Fp8Pair<A, B>>;

template <class Products>
inline constexpr bool kAreFp8 = kIsFp8<Products>;
template <class A, class B>
inline constexpr bool kAreFp8<Fp8Pair<A, B>> = true;

template <class A, class B>
struct MmaSum<Fp8Pair<A, B>, float> {
  static_assert(kIsFp8<A> && kIsFp8<B> && !std::is_same_v<A, B>, "two formats");
  float value[4] = {};

  __device__ __forceinline__ void add(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (std::is_same_v<A, e4m3>) {
      ptx::mma_m16n8k32_e4m3_e5m2(value, a, b);
    } else {
      ptx::mma_m16n8k32_e5m2_e4m3(value, a, b);
    }
  }
  __device__ __forceinline__ float2 pair(int half) const { return {value[2 * half], value[2 * half + 1]}; }
};

}  // namespace warpsmith
