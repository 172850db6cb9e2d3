// What becomes of a finished sum: d = activation(alpha * sum + beta * c).
#pragma once

#include "device/convert.h"
#include "elementwise/map/functions.h"
#include "gemm/gemm.h"

namespace warpsmith {

// `exact` is the activation's formula for f32 results; 16-bit ones get the faster formulas of the elementwise family.
template <bool exact>
__device__ __forceinline__ float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return Relu::forward<exact>(x, 0.0f);
    case Activation::gelu:
      return Gelu::forward<exact>(x, 0.0f);
    case Activation::gelu_tanh:
      return GeluTanh::forward<exact>(x, 0.0f);
    case Activation::silu:
      return Silu::forward<exact>(x, 0.0f);
    default:
      return x;
  }
}

// The result at [batch, row, col] of a sum held in f32, rounded once.
template <class T>
__device__ __forceinline__ T finish(const GemmArgs& p, float sum, int64_t batch, int64_t row, int64_t col) {
  float value = p.alpha * sum;
  if (p.c.data != nullptr) {
    const int64_t at = batch * p.c.batch + row * p.c.row + col * p.c.col;
    value = fmaf(p.beta, to_float(static_cast<const T*>(p.c.data)[at]), value);
  }
  return from_float<T>(activate<sizeof(T) == 4>(p.activation, value));
}

}  // namespace warpsmith
