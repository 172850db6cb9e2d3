// Typed arguments of the rms_norm_with_rstd rungs.
#pragma once

#include "host/launch.h"
#include "host/registry.h"
#include "norm/rms_norm_with_rstd/rms_norm_with_rstd.h"
#include "norm/row.cuh"

namespace warpsmith {

// T: x and y. W: weight.
template <class T, class W>
struct RmsNormWithRstdRows {
  const T* x;       // [rows, cols], x_stride elements apart
  const W* weight;  // [cols] or null
  T* y;             // [rows, cols]
  float* rstd;      // [rows]
  int64_t rows, cols, x_stride;
  float eps;
  float inverse_count;  // 1 / cols

  explicit RmsNormWithRstdRows(const RmsNormWithRstdArgs& a)
      : x(static_cast<const T*>(a.x)),
        weight(static_cast<const W*>(a.weight)),
        y(static_cast<T*>(a.y)),
        rstd(a.rstd),
        rows(a.rows),
        cols(a.cols),
        x_stride(a.x_stride),
        eps(a.eps),
        inverse_count(1.0f / static_cast<float>(a.cols)) {}

  __device__ const T* x_row(int64_t row) const { return x + row * x_stride; }
  __device__ T* y_row(int64_t row) const { return y + row * cols; }

  // Every thread gets the row's rstd; one of them writes it.
  __device__ __forceinline__ float keep(int64_t row, float squares, float (&partial)[kWarp]) const {
    const float scale = reciprocal_rms(block_sum(squares, partial), inverse_count, eps);
    if (threadIdx.x == 0) rstd[row] = scale;
    return scale;
  }
};

}  // namespace warpsmith
