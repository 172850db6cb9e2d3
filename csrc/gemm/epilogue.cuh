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

// What is added at [batch, row, col]. Where nothing is, nothing is read.
template <class T>
__device__ __forceinline__ float addend_at(const GemmArgs& p, int64_t batch, int64_t row, int64_t col) {
  if (p.c.data == nullptr) return 0.0f;
  return to_float(static_cast<const T*>(p.c.data)[batch * p.c.batch + row * p.c.row + col * p.c.col]);
}

// The result of a sum held in f32, with what `addend_at` read for it; rounded once.
template <class T>
__device__ __forceinline__ T finish(const GemmArgs& p, float sum, float addend) {
  float value = p.alpha * sum;
  if (p.c.data != nullptr) value = fmaf(p.beta, addend, value);
  return from_float<T>(activate<sizeof(T) == 4>(p.activation, value));
}

template <class T>
__device__ __forceinline__ T finish(const GemmArgs& p, float sum, int64_t batch, int64_t row, int64_t col) {
  return finish<T>(p, sum, addend_at<T>(p, batch, row, col));
}

}  // namespace warpsmith
