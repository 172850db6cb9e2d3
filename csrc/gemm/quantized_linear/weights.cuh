// Codes of 4 and 8 bits as fragments of 16-bit values, in registers.
//
// A code becomes the low bits of the mantissa of a power of two, from which that power and the zero are subtracted: what is
// left is exact. bf16 has seven bits of mantissa: of eight, the last is the lowest of the exponent, which makes 256 of 128.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/convert.h"
#include "device/ptx/logic.h"

namespace warpsmith {

template <class T>
struct Pairs;

template <>
struct Pairs<f16> {
  using Type = __half2;
  static constexpr uint32_t kPower = 0x64006400u;  // 1024, where neighbours are 1 apart
  static constexpr float kValue = 1024.0f;
};

template <>
struct Pairs<bf16> {
  using Type = __nv_bfloat162;
  static constexpr uint32_t kPower = 0x43004300u;  // 128
  static constexpr float kValue = 128.0f;
};

template <class T>
__device__ __forceinline__ uint32_t subtract_pairs(uint32_t a, uint32_t b) {
  using Type = typename Pairs<T>::Type;
  const Type difference = __hsub2(reinterpret_cast<const Type&>(a), reinterpret_cast<const Type&>(b));
  return reinterpret_cast<const uint32_t&>(difference);
}

// What is subtracted from a pair of codes of 4 bits.
template <class T>
__device__ __forceinline__ uint32_t zero_pair(int zero) {
  const T one = from_float<T>(Pairs<T>::kValue + static_cast<float>(zero));
  return uint32_t{reinterpret_cast<const uint16_t&>(one)} * 0x00010001u;
}

// The fragment of a lane from its word. `zeros`: of rows g and g + 8.
template <class T>
__device__ __forceinline__ void fragment_of_4_bits(uint32_t (&a)[4], uint32_t word, const uint32_t (&zeros)[2]) {
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    a[v] = subtract_pairs<T>(ptx::and_or(word >> (4 * v), 0x000f000fu, Pairs<T>::kPower), zeros[v % 2]);
  }
}

template <class T>
__device__ __forceinline__ uint32_t pair_of_8_bits(uint32_t word) {
  if constexpr (std::is_same_v<T, f16>) {
    constexpr uint32_t kFlipped = 0x64806480u, kOffset = 0x64806480u;  // 1024, and bit 7 of the code; 1024 + 128
    return subtract_pairs<T>(ptx::and_xor(word, 0x00ff00ffu, kFlipped), kOffset);
  } else {
    constexpr uint32_t kPower = Pairs<T>::kPower;
    return subtract_pairs<T>(ptx::and_or(word, 0x007f007fu, kPower), ptx::and_or(word, 0x00800080u, kPower));
  }
}

template <class T>
__device__ __forceinline__ void fragment_of_8_bits(uint32_t (&a)[4], uint32_t left, uint32_t right) {
  a[0] = pair_of_8_bits<T>(left);
  a[1] = pair_of_8_bits<T>(left >> 8);
  a[2] = pair_of_8_bits<T>(right);
  a[3] = pair_of_8_bits<T>(right >> 8);
}

}  // namespace warpsmith
