// What becomes of a finished sum: d = activation(alpha * sum + beta * c).
#pragma once

#include "device/activations.h"
#include "device/convert.h"
#include "gemm/gemm.h"

namespace warpsmith {

// Of n values, in place. `exact` is the activation's formula for f32 results; 16-bit ones get the faster formulas of the
// elementwise family. One branch for all of them, which costs more than most of the formulas.
template <bool exact, int n>
__device__ __forceinline__ void activate(Activation activation, float* values) {
  const auto apply = [&]<class Function>(Function) {
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = Function::template forward<exact>(values[i], 0.0f);
  };
  switch (activation) {
    case Activation::relu:
      return apply(Relu{});
    case Activation::gelu:
      return apply(Gelu{});
    case Activation::gelu_tanh:
      return apply(GeluTanh{});
    case Activation::silu:
      return apply(Silu{});
    default:
      return;
  }
}

// What is added at [batch, row, col]. Where nothing is, nothing is read.
template <class T>
__device__ __forceinline__ float addend_at(const GemmArgs& p, int64_t batch, int64_t row, int64_t col) {
  if (p.c.data == nullptr) return 0.0f;
  return to_float(static_cast<const T*>(p.c.data)[batch * p.c.batch + row * p.c.row + col * p.c.col]);
}

// alpha * sum + beta * addend of n values, in place of the sums.
template <int n>
__device__ __forceinline__ void scale_and_add(const GemmArgs& p, float (&sums)[n], const float (&addends)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) sums[i] *= p.alpha;
  if (p.c.data == nullptr) return;
#pragma unroll
  for (int i = 0; i < n; ++i) sums[i] = fmaf(p.beta, addends[i], sums[i]);
}

// The result of a sum held in f32, with what `addend_at` read for it; rounded once.
template <class T>
__device__ __forceinline__ T finish(const GemmArgs& p, float sum, float addend) {
  float sums[] = {sum};
  scale_and_add(p, sums, {addend});
  activate<sizeof(T) == 4, 1>(p.activation, sums);
  return from_float<T>(sums[0]);
}

template <class T>
__device__ __forceinline__ T finish(const GemmArgs& p, float sum, int64_t batch, int64_t row, int64_t col) {
  return finish<T>(p, sum, addend_at<T>(p, batch, row, col));
}

// Of n neighbours in a row. All of c is read before any of it is used.
template <class T, int n>
__device__ __forceinline__ void finish(Vec<T, n>& to, const GemmArgs& p, float (&sums)[n], int64_t batch, int64_t row,
                                       int64_t col) {
  float addends[n];
#pragma unroll
  for (int i = 0; i < n; ++i) addends[i] = addend_at<T>(p, batch, row, col + i);
  scale_and_add(p, sums, addends);
  activate<sizeof(T) == 4, n>(p.activation, sums);
  from_float(to, sums);
}

}  // namespace warpsmith
