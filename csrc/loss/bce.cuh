// Binary cross-entropy of a logit and its gradient, for one value.
#pragma once

#include "device/ptx/math.h"
#include "loss/row_sums.cuh"

namespace warpsmith {

// log(1 + e) for e in [0, 1], relative error 2e-7: a polynomial fitted for the smallest largest relative error, which
// neither cancels near 0 nor takes a logarithm.
__device__ __forceinline__ float log1p_unit(float e) {
  constexpr float kFit[] = {1.0f,          -0.499999017f, 0.333299637f,   -0.249541342f, 0.196759403f,
                            -0.153055936f, 0.106036559f,  -0.0569595397f, 0.0198514629f, -0.00324402470f};
  constexpr int kLast = static_cast<int>(sizeof(kFit) / sizeof(float)) - 1;
  float p = kFit[kLast];
#pragma unroll
  for (int i = kLast - 1; i >= 0; --i) p = fmaf(p, e, kFit[i]);
  return p * e;
}

// (1 - t) x - log(sigmoid(x)), in the order in which PyTorch takes it, so that infinities meet as they do there.
__device__ __forceinline__ float bce_with_logits(float x, float t) {
  const float log_sigmoid = fminf(x, 0.0f) - log1p_unit(ptx::exp2_approx_ftz(-fabsf(x) * kLog2e));
  return (1.0f - t) * x - log_sigmoid;
}

__device__ __forceinline__ float bce_with_logits_slope(float x, float t) {
  return ptx::reciprocal_approx_ftz(1.0f + ptx::exp2_approx_ftz(-x * kLog2e)) - t;
}

}  // namespace warpsmith
