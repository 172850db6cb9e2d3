// Values as tensor cores multiply them: in 16 bits as they are, in 32 as three of bf16 whose sum they are.
#pragma once

#include <cstdint>

#include "device/convert.h"

namespace warpsmith {

template <class T>
struct Planes {
  using Unit = T;
  static constexpr int count = 1;
  __device__ __forceinline__ static void split(T (&to)[1], T value) { to[0] = value; }
};

// Eight bits of the significand each, cut off and not rounded, so that nothing overflows and nothing is lost.
template <>
struct Planes<float> {
  using Unit = bf16;
  static constexpr int count = 3;

  __device__ __forceinline__ static float upper(float value) {
    return __uint_as_float(__float_as_uint(value) & 0xffff0000u);
  }
  __device__ __forceinline__ static void split(bf16 (&to)[3], float value) {
    const bool finite = fabsf(value) < __uint_as_float(0x7f800000u);
    const float high = finite ? upper(value) : value;
    const float rest = finite ? value - high : 0.0f, middle = upper(rest);
    to[0] = from_float<bf16>(high);
    to[1] = from_float<bf16>(middle);
    to[2] = from_float<bf16>(rest - middle);
  }
};

// Of the nine products of planes those six that f32 can see, the smallest first. Plane `a` and `b` of product i lie at
// bits 2 i and 2 i + 1 of a word. Of values of 16 bits, the last product is all there is.
struct PlaneProducts {
  static constexpr int end = 6;
  __host__ __device__ static constexpr int first(int planes) { return planes == 3 ? 0 : end - 1; }
  __host__ __device__ static constexpr int a(int i) { return (2 | 1 << 2 | 0 << 4 | 1 << 6) >> 2 * i & 3; }
  __host__ __device__ static constexpr int b(int i) { return (0 | 1 << 2 | 2 << 4 | 0 << 6 | 1 << 8) >> 2 * i & 3; }
};

}  // namespace warpsmith
