// Gradient of the softmax of attention scores, from its output: dx = scale * y * (grad - sum over the row of grad * y).
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct ScaledMaskedSoftmaxBackwardArgs {
  const void* grad;  // [rows, cols], columns contiguous
  const void* y;     // [rows, cols], columns contiguous
  void* dx;          // [rows, cols], contiguous
  int64_t rows, cols;
  int64_t grad_stride, y_stride;  // elements from one row to the next
  int64_t queries;                // rows of each matrix: query i of a causal one sees keys up to i + cols - queries
  float scale;
  bool causal;
  Dtype dtype;
};

inline const char* needs_packs(const ScaledMaskedSoftmaxBackwardArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const bool packs = tiles_rows(a.grad, a.rows, a.cols, a.grad_stride, a.dtype, width) &&
                     tiles_rows(a.y, a.rows, a.cols, a.y_stride, a.dtype, width);
  return packs ? nullptr : "needs rows aligned to 16 bytes";
}

}  // namespace warpsmith
