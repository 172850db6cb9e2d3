// A norm's xhat from its output: xhat = (y - bias) / weight.
#pragma once

#include <type_traits>

namespace warpsmith {

// Weights nearer to zero than `least` have left nothing of xhat in y, and count as that much.
__device__ __forceinline__ float divisible(float weight, float least) {
  return fabsf(weight) < least ? copysignf(least, weight) : weight;  // NaN passes
}

// Within 2 ulp of float where the values have fewer digits.
template <class T>
__device__ __forceinline__ float quotient(float a, float b) {
  if constexpr (std::is_same_v<T, float>) {
    return a / b;
  } else {
    return __fdividef(a, b);
  }
}

}  // namespace warpsmith
