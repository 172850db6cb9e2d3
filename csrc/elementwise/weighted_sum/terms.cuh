// What the rungs of weighted_sum share: a term, and the sum for one element.
#pragma once

#include "device/convert.h"
#include "elementwise/weighted_sum/weighted_sum.h"
#include "host/ceil_div.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {

// A term on top of those before it. The first one adds to nothing, so that -0 stays -0.
__device__ __forceinline__ float add_term(float sum, int k, float weight, float value) {
  return k == 0 ? weight * value : fmaf(weight, value, sum);
}

template <class T>
__device__ __forceinline__ void sum_element(const WeightedSumArgs& a, int64_t i) {
  float sum = 0.0f;
  for (int k = 0; k < a.terms; ++k) sum = add_term(sum, k, a.weights[k], to_float(static_cast<const T*>(a.x[k])[i]));
  static_cast<T*>(a.y)[i] = from_float<T>(sum);
}

// The elements after the last whole pack, by the last block.
template <class T>
__device__ __forceinline__ void sum_rest(const WeightedSumArgs& a) {
  const int64_t i = a.n / kPack<T> * kPack<T> + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && i < a.n) sum_element<T>(a, i);
}

}  // namespace warpsmith
