// Gradients of RMS normalisation. With r = rsqrt(mean(x^2) + eps) and xhat = x * r:
//   dx = r * (grad * weight - xhat * mean(grad * weight * xhat))        dw = sum over rows of grad * xhat
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct RmsNormBackwardArgs {
  const void* grad;    // [rows, cols], columns contiguous
  const void* x;       // [rows, cols], columns contiguous
  const void* weight;  // [cols], null for none
  void* dx;            // [rows, cols], contiguous
  void* dw;            // [cols], null without a weight
  float* partial;      // [most_partials, cols] workspace: sums of dw over some of the rows; null without a weight
  float* rstd;         // [rows] workspace; null without a weight
  int64_t rows, cols;
  int64_t grad_stride, x_stride;  // elements from one row to the next
  int64_t most_partials;
  float eps;
  Dtype dtype;         // of grad, x and dx
  Dtype weight_dtype;  // of weight and dw: f32 or that of x
};

// How many partial sums of dw a call may leave: enough to keep every multiprocessor busy, few enough that writing and
// reading them back costs little beside the rows themselves.
inline int64_t partials_for(int64_t rows, int64_t cols, int sm_count) {
  const int64_t per_sm = std::clamp<int64_t>(16384 / cols, 2, 8);
  const int64_t wanted = cols <= 8192 ? per_sm * sm_count : std::max<int64_t>(16, 2 * sm_count * 8192 / cols);
  return std::min(rows, wanted);
}

inline const char* needs_packs(const RmsNormBackwardArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const bool packs = tiles_rows(a.grad, a.rows, a.cols, a.grad_stride, a.dtype, width) &&
                     tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) &&
                     tiles_weight(a.weight, a.weight_dtype, width);
  return packs ? nullptr : "needs rows and weight aligned to 16 bytes";
}

}  // namespace warpsmith
