// Gradients of h = x + residual and y = norm(h). With xhat = (h - mean) * rstd, g = grad * weight, and neither mean in RMS
// norm, which subtracts none:
//   dh = rstd * (g - mean(g) - xhat * mean(g * xhat)) + grad_h
//   dw = sum over rows of grad * xhat        db = sum over rows of grad
// mean and rstd come from h again, so that the forward pass keeps h only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct AddNormBackwardArgs {
  const void* grad;    // [rows, cols], columns contiguous: of y
  const void* grad_h;  // [rows, cols], columns contiguous: what reaches h past the norm; null for zeros
  const void* h;       // [rows, cols], columns contiguous
  const void* weight;  // [cols], null for ones
  void* dh;            // [rows, cols], contiguous: of residual
  void* dx;            // [rows, cols], contiguous: of x, in its dtype; null where dh will do
  void* dw;            // [cols], null without a weight
  void* db;            // [cols], null without a bias
  float* partial_dw;   // [most_partials, cols] workspace: sums of dw over some of the rows; null without dw
  float* partial_db;   // the same for db
  float* statistics;   // [2, rows] workspace: mean and rstd; null without dw and db
  int64_t rows, cols;
  int64_t grad_stride, grad_h_stride, h_stride;  // elements from one row to the next
  int64_t most_partials;
  float eps;
  float weight_offset;  // 1 for a weight that is centred at zero
  bool layer;           // layer norm instead of RMS norm
  Dtype dtype;          // of grad and dx
  Dtype h_dtype;        // of h, grad_h and dh: f32 or that of grad
  Dtype weight_dtype;   // of weight, dw and db: f32 or that of grad
};

// Accesses of 16 bytes on the wider of grad and h.
inline const char* needs_packs(const AddNormBackwardArgs& a) {
  const int width = 16 / std::max(size_of(a.dtype), size_of(a.h_dtype));
  const bool packs = tiles_rows(a.grad, a.rows, a.cols, a.grad_stride, a.dtype, width) &&
                     tiles_rows(a.grad_h, a.rows, a.cols, a.grad_h_stride, a.h_dtype, width) &&
                     tiles_rows(a.h, a.rows, a.cols, a.h_stride, a.h_dtype, width) &&
                     tiles_weight(a.weight, a.weight_dtype, width);
  return packs ? nullptr : "needs rows and weight aligned to 16 bytes";
}

}  // namespace warpsmith
