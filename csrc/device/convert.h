// Every element type to float and back, a vector at a time.
//
// fp8 follows PyTorch's conversion, not the hardware's saturation: what rounds beyond the largest finite value becomes
// NaN in e4m3 (which has no infinity) and infinity in e5m2. (PyTorch 2.13 saturates e4m3 on CPUs.)
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/ptx/convert.h"
#include "device/vec.h"
#include "host/dtype.h"

namespace warpsmith {

template <class T>
inline constexpr bool kIsFp8 = std::is_same_v<T, e4m3> || std::is_same_v<T, e5m2>;

// The two fp8 formats in numbers.
template <class T>
struct Fp8Format;

template <>
struct Fp8Format<e4m3> {
  static constexpr int exponent_bits = 4, mantissa_bits = 3, bias = 7;
  static constexpr float overflow = 464.0f;  // halfway past 448; a tie rounds down to 448, which is even
  static constexpr bool overflows_at_tie = false;
  static constexpr uint8_t beyond = 0x7f;  // NaN
};

template <>
struct Fp8Format<e5m2> {
  static constexpr int exponent_bits = 5, mantissa_bits = 2, bias = 15;
  static constexpr float overflow = 61440.0f;  // halfway past 57344; a tie rounds up, 57344 being odd
  static constexpr bool overflows_at_tie = true;
  static constexpr uint8_t beyond = 0x7c;  // infinity
};

template <class T>
__host__ __device__ constexpr bool overflows_fp8(float magnitude) {
  return Fp8Format<T>::overflows_at_tie ? magnitude >= Fp8Format<T>::overflow : magnitude > Fp8Format<T>::overflow;
}

// Round to nearest even, without a branch: what sm_80 runs, and what the tests hold the hardware against.
template <class T>
__host__ __device__ inline uint8_t encode_fp8_portable(float x) {
  using Format = Fp8Format<T>;
  constexpr int kDropped = 23 - Format::mantissa_bits;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - Format::bias) << 23;
  constexpr uint32_t kHalfLessOne = (1u << (kDropped - 1)) - 1, kBias = static_cast<uint32_t>(127 - Format::bias) << 23;
  union {
    float f;
    uint32_t u;
  } value{x}, step;
  const uint32_t sign = value.u >> 24 & 0x80u;
  value.u &= 0x7fffffffu;
  const bool nan = value.u > 0x7f800000u;
  // What rounds beyond the largest finite value has a code beyond its code.
  const uint32_t rounded = (value.u + kHalfLessOne + (value.u >> kDropped & 1) - kBias) >> kDropped;
  const uint32_t normal = rounded < Format::beyond ? rounded : Format::beyond;
  // Adding 2^23 steps of the subnormal grid leaves the rounded multiple of that step in the low mantissa bits.
  const bool is_normal = value.u >= kSmallestNormal;
  step.u = static_cast<uint32_t>(127 + 24 - Format::bias - Format::mantissa_bits) << 23;
  value.f += step.f;
  return static_cast<uint8_t>(sign | (nan ? 0x7fu : (is_normal ? normal : value.u - step.u)));
}

// Exact: the code's bits as a float of the smallest exponents, scaled. What sm_80 runs.
template <class T>
__host__ __device__ inline float decode_fp8_portable(uint8_t code) {
  using Format = Fp8Format<T>;
  const uint32_t magnitude = code & 0x7fu;
  union {
    uint32_t u;
    float f;
  } value{magnitude << (23 - Format::mantissa_bits)}, scale{static_cast<uint32_t>(254 - Format::bias) << 23};
  const uint32_t special = value.u | 0x7f800000u;  // infinity, or NaN
  value.f *= scale.f;
  value.u = (magnitude < Format::beyond ? value.u : special) | (code & 0x80u) << 24;
  return value.f;
}

template <class T>
__device__ __forceinline__ uint16_t encode_fp8x2_saturating(float low, float high) {
#if WARPSMITH_HAS_FP8_CVT && defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, e4m3>) return ptx::e4m3x2_from_floats(low, high);
  return ptx::e5m2x2_from_floats(low, high);
#else
  return 0;
#endif
}

template <class T>
__device__ __forceinline__ uint16_t encode_fp8x2(float low, float high) {
#if WARPSMITH_HAS_FP8_CVT && defined(__CUDA_ARCH__)
  // The code after the largest finite one is NaN in e4m3 and infinity in e5m2: exactly what an overflow must become.
  return encode_fp8x2_saturating<T>(low, high) + (overflows_fp8<T>(fabsf(low)) ? 0x0001 : 0) +
         (overflows_fp8<T>(fabsf(high)) ? 0x0100 : 0);
#else
  return static_cast<uint16_t>(encode_fp8_portable<T>(low) | encode_fp8_portable<T>(high) << 8);
#endif
}

// Four values. An overflow can only hide behind the largest finite code, which is rare: one test looks for it in all
// four bytes, and only then are the values themselves compared.
template <class T>
__device__ __forceinline__ uint32_t encode_fp8x4(float a, float b, float c, float d) {
#if WARPSMITH_HAS_FP8_CVT && defined(__CUDA_ARCH__)
  constexpr uint32_t kLargest = 0x01010101u * (Fp8Format<T>::beyond - 1);
  const uint32_t word = __byte_perm(encode_fp8x2_saturating<T>(a, b), encode_fp8x2_saturating<T>(c, d), 0x5410);
  const uint32_t difference = (word & 0x7f7f7f7fu) ^ kLargest;  // a zero byte where the code is the largest
  if (((difference - 0x01010101u) & ~difference & 0x80808080u) == 0) return word;
#endif
  return encode_fp8x2<T>(a, b) | static_cast<uint32_t>(encode_fp8x2<T>(c, d)) << 16;
}

template <class T>
__device__ __forceinline__ float2 decode_fp8x2(uint16_t pair) {
#if WARPSMITH_HAS_FP8_CVT && defined(__CUDA_ARCH__)
  uint32_t halves;
  if constexpr (std::is_same_v<T, e4m3>) {
    halves = ptx::half2_from_e4m3x2(pair);
  } else {
    halves = ptx::half2_from_e5m2x2(pair);
  }
  return __half22float2(*reinterpret_cast<const __half2*>(&halves));
#else
  return {decode_fp8_portable<T>(static_cast<uint8_t>(pair)), decode_fp8_portable<T>(static_cast<uint8_t>(pair >> 8))};
#endif
}

template <class T>
__device__ __forceinline__ float to_float(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, f16>) {
    return __half2float(x);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __bfloat162float(x);
  } else {
    return decode_fp8x2<T>(x.__x).x;
  }
}

template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, f16>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __float2bfloat16_rn(x);
  } else {
    T y;
    y.__x = static_cast<uint8_t>(encode_fp8x2<T>(x, 0.0f));
    return y;
  }
}

template <class T, int n>
__device__ __forceinline__ void to_float(float (&to)[n], const Vec<T, n>& from) {
  if constexpr (n % 2 == 1 || std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = to_float(from[i]);
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      float2 pair;
      if constexpr (std::is_same_v<T, f16>) {
        pair = __half22float2(reinterpret_cast<const __half2&>(from[i]));
      } else if constexpr (std::is_same_v<T, bf16>) {
        // One instruction each, where __bfloat1622float2 takes three: a bfloat16 is the upper half of its float.
        const uint32_t both = reinterpret_cast<const uint32_t&>(from[i]);
        pair = {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
      } else {
        pair = decode_fp8x2<T>(reinterpret_cast<const uint16_t&>(from[i]));
      }
      to[i] = pair.x;
      to[i + 1] = pair.y;
    }
  }
}

template <class T, int n>
__device__ __forceinline__ void from_float(Vec<T, n>& to, const float (&from)[n]) {
  if constexpr (n % 2 == 1 || std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = from_float<T>(from[i]);
  } else if constexpr (kIsFp8<T> && n % 4 == 0) {
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      reinterpret_cast<uint32_t&>(to[i]) = encode_fp8x4<T>(from[i], from[i + 1], from[i + 2], from[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      if constexpr (std::is_same_v<T, f16>) {
        reinterpret_cast<__half2&>(to[i]) = __floats2half2_rn(from[i], from[i + 1]);
      } else if constexpr (std::is_same_v<T, bf16>) {
        reinterpret_cast<__nv_bfloat162&>(to[i]) = __floats2bfloat162_rn(from[i], from[i + 1]);
      } else {
        reinterpret_cast<uint16_t&>(to[i]) = encode_fp8x2<T>(from[i], from[i + 1]);
      }
    }
  }
}

}  // namespace warpsmith
