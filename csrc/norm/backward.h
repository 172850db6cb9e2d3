// Gradients of the row-wise normalisations: what their kernels are given.
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct NormBackwardArgs {
  const void* grad;    // [rows, cols], columns contiguous
  const void* x;       // [rows, cols], columns contiguous; the norm's input, or the output it is recomputed from
  const void* weight;  // [cols], null for none
  const void* bias;    // [cols], null for none and where no gradient depends on it
  const float* rstd;   // [rows], null unless the forward pass has kept it
  void* dx;            // [rows, cols], contiguous
  void* dw;            // [cols], null without a weight
  void* db;            // [cols], null without a bias
  float* partial_dw;   // [most_partials, cols] workspace: sums of dw over some of the rows; null without a weight
  float* partial_db;   // [most_partials, cols] workspace: the same for db; null without a bias
  float* stats;        // [rows, 2] workspace; null without a weight
  int64_t rows, cols;
  int64_t grad_stride, x_stride;  // elements from one row to the next
  int64_t most_partials;
  float eps;
  Dtype dtype;         // of grad, x and dx
  Dtype weight_dtype;  // of weight, bias, dw and db: f32 or that of x
};

// How many partial sums of dw a call may leave: enough to keep every multiprocessor busy, few enough that writing and
// reading them back costs little beside the rows themselves.
inline int64_t partials_for(int64_t rows, int64_t cols, int sm_count) {
  const int64_t per_sm = std::clamp<int64_t>(16384 / cols, 2, 8);
  const int64_t wanted = cols <= 8192 ? per_sm * sm_count : std::max<int64_t>(16, 2 * sm_count * 8192 / cols);
  return std::min(rows, wanted);
}

// Whether 128-bit accesses tile everything that is read.
inline bool tiles_packs(const NormBackwardArgs& a) {
  const int width = 16 / size_of(a.dtype);
  return tiles_rows(a.grad, a.rows, a.cols, a.grad_stride, a.dtype, width) &&
         tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) && tiles_weight(a.weight, a.weight_dtype, width) &&
         tiles_weight(a.bias, a.weight_dtype, width);
}

}  // namespace warpsmith
