// What the rungs of add_norm_fp8 add to those of add_norm: the rounding of y.
#pragma once

#include "device/saturate.h"
#include "norm/add_norm/row.cuh"
#include "norm/add_norm_fp8/add_norm_fp8.h"

namespace warpsmith {

// The last step of a value on its way to y.
struct QuantisedRounding {
  const float* scale;  // one value, or null

  template <class Y, int n>
  __device__ __forceinline__ Vec<Y, n> round(float (&values)[n]) const {
    const float factor = scale == nullptr ? 1.0f : *scale;
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] *= factor;
    Vec<Y, n> rounded;
    from_float_saturating(rounded, values);
    return rounded;
  }
};

template <class Types>
struct AddNormFp8Rows : AddNormRows<Types> {
  using Y = typename Types::Y;

  QuantisedRounding rounding;

  explicit AddNormFp8Rows(const AddNormFp8Args& a) : AddNormRows<Types>(a), rounding{a.scale} {}

  template <int n>
  __device__ __forceinline__ Vec<Y, n> round(float (&values)[n]) const {
    return rounding.template round<Y>(values);
  }
};

template <class Body>
void visit_add_norm_fp8(const AddNormFp8Args& a, Body&& body) {
  visit_add_norm_dtypes(a, [&]<class T, class R, class W>() {
    dispatch_fp8(a.y_dtype, [&]<class Y>() {
      if (a.layer) {
        body.template operator()<AddNormTypes<true, T, R, W, Y>>();
      } else {
        body.template operator()<AddNormTypes<false, T, R, W, Y>>();
      }
    });
  });
}

}  // namespace warpsmith
