// What both directions of the norm of heads compute with.
#pragma once

#include "device/convert.h"
#include "transform/qk_norm_rope/qk_norm_rope.h"

namespace warpsmith {

__device__ __forceinline__ float head_rstd(float sum_of_squares, int d, float eps) {
  return rsqrtf(sum_of_squares / static_cast<float>(d) + eps);
}

template <class T>
__device__ __forceinline__ float head_weight(const void* weight, int i, Dtype dtype) {
  return dtype == Dtype::f32 ? static_cast<const float*>(weight)[i] : to_float(static_cast<const T*>(weight)[i]);
}

// `width` weights from `first` on, aligned.
template <class T, int width>
__device__ __forceinline__ void head_weights(float (&to)[width], const void* weight, int first, Dtype dtype) {
  if (dtype == Dtype::f32) {
#pragma unroll
    for (int i = 0; i < width; i += 4) {
      Vec<float, 4> values;
      load(values, static_cast<const float*>(weight) + first + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i + j] = values[j];
    }
  } else {
    Vec<T, width> values;
    load(values, static_cast<const T*>(weight) + first);
    to_float(to, values);
  }
}

}  // namespace warpsmith
