// 128-bit packs of weights of any type and of the values that they meet, in f32.
#pragma once

#include <cstdint>

#include "device/convert.h"
#include "device/ptx/memory.h"
#include "row/packed.h"

namespace warpsmith {

// Four signed bytes. Each becomes the low mantissa byte of 2^23, which costs a permutation and a subtraction: conversions
// of integers run at a quarter of that rate and less.
__device__ __forceinline__ void unpack_bytes(float (&to)[4], uint32_t word) {
  constexpr uint32_t kTwoTo23 = 0x4b000000;
  constexpr float kOffset = 8388608.0f + 128.0f;
  const uint32_t raised = word ^ 0x80808080u;  // from 0 to 255
  to[0] = __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7650)) - kOffset;
  to[1] = __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7651)) - kOffset;
  to[2] = __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7652)) - kOffset;
  to[3] = __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7653)) - kOffset;
}

template <class W>
__device__ __forceinline__ uint32_t half2_from_fp8x2(uint16_t pair) {
#if WARPSMITH_HAS_FP8_CVT && defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<W, e4m3>) return ptx::half2_from_e4m3x2(pair);
  return ptx::half2_from_e5m2x2(pair);
#else
  const float2 values = decode_fp8x2<W>(pair);
  const __half2 halves = __floats2half2_rn(values.x, values.y);  // exact
  return reinterpret_cast<const uint32_t&>(halves);
#endif
}

// Four signed bytes as f16: each becomes the low mantissa byte of 1024, see unpack_bytes.
__device__ __forceinline__ void halves_from_bytes(uint32_t& low, uint32_t& high, uint32_t word) {
  const uint32_t raised = word ^ 0x80808080u;
  const __half2 offset = __float2half2_rn(1024.0f + 128.0f);
  low = __byte_perm(raised, 0x64646464u, 0x4140);
  high = __byte_perm(raised, 0x64646464u, 0x4342);
  reinterpret_cast<__half2&>(low) = __hsub2(reinterpret_cast<const __half2&>(low), offset);
  reinterpret_cast<__half2&>(high) = __hsub2(reinterpret_cast<const __half2&>(high), offset);
}

template <class W>
__device__ __forceinline__ void unpack_weights(float (&to)[kPack<W>], const uint4& pack) {
  if constexpr (sizeof(W) > 1) {
    unpack<W>(to, pack);
  } else {
    const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<W, int8_t>) {
        float four[4];
        unpack_bytes(four, words[i]);
#pragma unroll
        for (int j = 0; j < 4; ++j) to[4 * i + j] = four[j];
      } else {
        const float2 low = decode_fp8x2<W>(static_cast<uint16_t>(words[i]));
        const float2 high = decode_fp8x2<W>(static_cast<uint16_t>(words[i] >> 16));
        to[4 * i] = low.x;
        to[4 * i + 1] = low.y;
        to[4 * i + 2] = high.x;
        to[4 * i + 3] = high.y;
      }
    }
  }
}

// A pack of weights as pairs of X, f16 or bf16, in order; exact.
template <class W, class X>
__device__ __forceinline__ void convert_weights(uint32_t (&to)[4 * sizeof(X) / sizeof(W)], const uint4& pack) {
  const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
  if constexpr (std::is_same_v<W, X>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = words[i];
  } else if constexpr (std::is_same_v<X, bf16>) {
    float values[kPack<W>];
    unpack_weights<W>(values, pack);
#pragma unroll
    for (int i = 0; i < kPack<W> / 2; ++i) {
      reinterpret_cast<__nv_bfloat162&>(to[i]) = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<W, int8_t>) {
        halves_from_bytes(to[2 * i], to[2 * i + 1], words[i]);
      } else {
        to[2 * i] = half2_from_fp8x2<W>(static_cast<uint16_t>(words[i]));
        to[2 * i + 1] = half2_from_fp8x2<W>(static_cast<uint16_t>(words[i] >> 16));
      }
    }
  }
}

// As many values of X as a pack of W holds: one or more packs, which stay in caches because every row needs them.
template <class W, class X>
struct PackValues {
  static constexpr int kParts = kPack<W> / kPack<X>;
  static_assert(kParts * kPack<X> == kPack<W>, "X is W or wider");
  uint4 part[kParts];

  __device__ __forceinline__ void load(const uint4* x, int64_t pack) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = __ldg(x + pack * kParts + i);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = {};
  }

  __device__ __forceinline__ void unpack_to(float (&to)[kPack<W>]) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      float some[kPack<X>];
      unpack<X>(some, part[i]);
#pragma unroll
      for (int j = 0; j < kPack<X>; ++j) to[i * kPack<X> + j] = some[j];
    }
  }
};

}  // namespace warpsmith
