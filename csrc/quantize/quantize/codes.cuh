// From values to codes of 8 bits, and the scale between the two.
//
// Magnitudes are compared as bits, for which NaN is the largest of all: a maximum of floats would drop it. The scale is a
// quotient, codes are products with its reciprocal; both round to nearest, as the reference in PyTorch does.
#pragma once

#include "device/saturate.h"
#include "device/warp.h"
#include "quantize/quantize/quantize.h"

namespace warpsmith {

inline constexpr float kLeastScale = 1.17549435e-38f;  // 2^-126: its reciprocal is finite

inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: sums with less than 2^22 have steps of 1

struct MostBits {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

template <int n>
__device__ __forceinline__ uint32_t most_bits(const float (&x)[n], uint32_t most = 0) {
#pragma unroll
  for (int i = 0; i < n; ++i) most = MostBits{}(most, magnitude_bits(x[i]));
  return most;
}

__device__ __forceinline__ float scale_of(float amax, Dtype q) {
  const float largest = q == Dtype::e4m3 ? 448.0f : q == Dtype::e5m2 ? 57344.0f : 127.0f;
  const float scale = amax / largest;
  return scale < kLeastScale ? kLeastScale : scale;  // NaN passes
}

__device__ __forceinline__ float scale_of(uint32_t bits, Dtype q) { return scale_of(__uint_as_float(bits), q); }

// Codes of n values, `at` elements from the first one. NaN is 0 in int8. The whole grid takes the same branch.
template <int n>
__device__ __forceinline__ void store_codes(void* q, int64_t at, const float (&y)[n], float inverse, Dtype dtype) {
  float scaled[n];
#pragma unroll
  for (int i = 0; i < n; ++i) scaled[i] = y[i] * inverse;
  const auto as_fp8 = [&]<class Q>() {
    Vec<Q, n> codes;
    from_float_saturating(codes, scaled);
    store(static_cast<Q*>(q) + at, codes);
  };
  if (dtype == Dtype::e4m3) {
    as_fp8.template operator()<e4m3>();
  } else if (dtype == Dtype::e5m2) {
    as_fp8.template operator()<e5m2>();
  } else {
    Vec<int8_t, n> codes;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      // the sum's last bits are the nearest integer; a conversion would have an eighth of the rate of an addition
      const int nearest = __float_as_int(scaled[i] + kRounder);
      codes[i] = static_cast<int8_t>(scaled[i] == scaled[i] ? nearest : 0);
    }
    store(static_cast<int8_t*>(q) + at, codes);
  }
}

}  // namespace warpsmith
