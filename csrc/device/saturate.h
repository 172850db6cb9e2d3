// Floats to fp8 with saturation, for quantisation: beyond the largest finite value stands that value, infinities
// included; NaN stays NaN. convert.h has the conversion that overflows as PyTorch's does.
#pragma once

#include "device/convert.h"

namespace warpsmith {

template <class T, int n>
__device__ __forceinline__ void from_float_saturating(Vec<T, n>& to, const float (&from)[n]) {
  static_assert(kIsFp8<T>, "wider types have no need to saturate");
#if WARPSMITH_HAS_FP8_CVT && defined(__CUDA_ARCH__)
  if constexpr (n % 2 == 0) {
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      reinterpret_cast<uint16_t&>(to[i]) = encode_fp8x2_saturating<T>(from[i], from[i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) to[i].__x = static_cast<uint8_t>(encode_fp8x2_saturating<T>(from[i], 0.0f));
  }
#else
  constexpr float kLargest = std::is_same_v<T, e4m3> ? 448.0f : 57344.0f;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float limited = from[i] > kLargest ? kLargest : from[i] < -kLargest ? -kLargest : from[i];  // NaN passes
    to[i].__x = encode_fp8_portable<T>(limited);
  }
#endif
}

}  // namespace warpsmith
