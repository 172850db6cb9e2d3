// Where the two halves lie, for the rungs of glu and of its gradient.
#pragma once

#include "device/activations.h"
#include "device/convert.h"
#include "device/fast_divide.h"
#include "host/ceil_div.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {

template <class T>
inline constexpr bool kExactGlu = sizeof(T) == 4;

// [outer, 2, inner] in accesses of `width` elements.
struct HalvesView {
  int64_t accesses;  // to one half, over all of outer
  int64_t per_half;  // in one row of outer
  FastDivide rows;

  HalvesView(int64_t outer, int64_t inner, int width)
      : accesses(outer * inner / width), per_half(inner / width), rows(static_cast<uint64_t>(inner / width)) {}

  // Where access i to `a` lies in x; that to `b` comes per_half later.
  __device__ __forceinline__ int64_t first_half(int64_t i) const {
    const auto row = static_cast<int64_t>(rows.quotient(static_cast<uint64_t>(i)));
    return i + row * per_half;
  }
};

template <bool exact>
__device__ __forceinline__ float gated_unit(float a, float b) {
  return a * logistic<exact>(b);
}

// The gradients of both halves, from exp(-|b|), which neither overflows nor cancels.
template <bool exact>
__device__ __forceinline__ void gated_unit_backward(float& da, float& db, float g, float a, float b) {
  const float e = exponential<exact>(-fabsf(b)), r = reciprocal<exact>(1.0f + e), falling = e * r;
  da = g * (b < 0.0f ? falling : r);
  db = a * (g * (falling * r));  // no product of two large ones
}

}  // namespace warpsmith
