// What becomes of finished sums of a scaled product: rounded, or to fp8 by the scale of the result, with saturation.
#pragma once

#include "device/convert.h"
#include "device/saturate.h"
#include "gemm/scaled_matmul/scaled_matmul.h"

namespace warpsmith {

// A pair of neighbours, the first in the low byte.
__device__ __forceinline__ uint16_t saturated_pair(Dtype out, float low, float high) {
  const auto as = [&]<class Out>() {
    Vec<Out, 2> pair;
    from_float_saturating(pair, {low, high});
    return reinterpret_cast<const uint16_t&>(pair);
  };
  return out == Dtype::e4m3 ? as.template operator()<e4m3>() : as.template operator()<e5m2>();
}

__device__ __forceinline__ float scale_of_result(const float* scale) { return scale == nullptr ? 1.0f : *scale; }

template <class Out, int n>
__device__ __forceinline__ void round_result(Vec<Out, n>& to, const float (&from)[n], const ScaledMatmulArgs& p) {
  if constexpr (std::is_same_v<Out, EitherFp8>) {
    const float scale = scale_of_result(p.scale_result);
    if constexpr (n == 1) {
      to[0].bits = static_cast<uint8_t>(saturated_pair(p.out, from[0] * scale, 0.0f));
    } else {
#pragma unroll
      for (int i = 0; i < n; i += 2) {
        const uint16_t pair = saturated_pair(p.out, from[i] * scale, from[i + 1] * scale);
        to[i].bits = static_cast<uint8_t>(pair);
        to[i + 1].bits = static_cast<uint8_t>(pair >> 8);
      }
    }
  } else {
    from_float(to, from);
  }
}

}  // namespace warpsmith
