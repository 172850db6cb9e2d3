// 128-bit packs as they stay in registers: four words, taken apart only where their values are computed with. An array of
// 16-bit values would be given a register for each.
#pragma once

#include <cstdint>

#include "device/convert.h"
#include "device/ptx/memory.h"
#include "device/vec.h"

namespace warpsmith {

// Makes the compiler forget what it derived from a pack: it would hold 16-bit values as floats, in twice the
// registers.
template <class T, int n>
__device__ __forceinline__ void keep_packed(Vec<T, n>& x) {
  static_assert(sizeof(x) == 16);
  uint4& raw = reinterpret_cast<uint4&>(x);
  asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
}

// Makes the compiler forget what it derived from a pack: it would keep 16-bit values as floats, in twice the registers.
// `zero` must be 0 and nothing that the compiler can know to be: an empty asm statement is not enough, since ptxas sees
// through it.
__device__ __forceinline__ void keep_packed(uint4& pack, uint32_t zero) {
  pack.x ^= zero;
  pack.y ^= zero;
  pack.z ^= zero;
  pack.w ^= zero;
}

template <class T>
__device__ __forceinline__ void unpack(float (&to)[kPack<T>], const uint4& pack) {
  const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      to[i] = __uint_as_float(words[i]);
    } else {
      if constexpr (std::is_same_v<T, f16>) {
        const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
      } else {  // bf16 is the upper half of a float
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    }
  }
}

template <class T>
__device__ __forceinline__ uint4 pack(const float (&from)[kPack<T>]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      words[i] = __float_as_uint(from[i]);
    } else if constexpr (std::is_same_v<T, f16>) {
      const __half2 pair = __floats2half2_rn(from[2 * i], from[2 * i + 1]);
      words[i] = reinterpret_cast<const uint32_t&>(pair);
    } else {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
      words[i] = reinterpret_cast<const uint32_t&>(pair);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// One value per column for the columns of a pack of T: weights or biases, in W. `absent` stands for all of them where
// there is no tensor.
template <class T, class W>
struct PackedColumns {
  static constexpr int kParts = kPack<T> / kPack<W>;
  static_assert(kParts * kPack<W> == kPack<T>, "W is T or wider");
  uint4 part[kParts];

  __device__ __forceinline__ void load_from(const W* columns, int col, float absent) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (columns != nullptr) {
        part[i] = reinterpret_cast<const uint4*>(columns + col)[i];
      } else {
        float values[kPack<W>];
#pragma unroll
        for (int j = 0; j < kPack<W>; ++j) values[j] = absent;
        part[i] = pack<W>(values);
      }
    }
  }

  __device__ __forceinline__ void keep(uint32_t zero) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) keep_packed(part[i], zero);
  }

  __device__ __forceinline__ void unpack_to(float (&to)[kPack<T>]) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      float values[kPack<W>];
      unpack<W>(values, part[i]);
#pragma unroll
      for (int j = 0; j < kPack<W>; ++j) to[i * kPack<W> + j] = values[j];
    }
  }
};

}  // namespace warpsmith
