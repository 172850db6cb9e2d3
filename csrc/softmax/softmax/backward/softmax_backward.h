// Gradient of softmax, dx = y (grad - sum(grad y)), or of its logarithm, dx = grad - exp(y) sum(grad): both need only the
// result y.
#pragma once

#include <cstdint>

#include "row/rows.h"
#include "softmax/chunks.h"

namespace warpsmith {

struct SoftmaxBackwardArgs {
  const void* grad;      // [outer, cols, inner], inner contiguous; rows with contiguous columns where inner is 1
  const void* y;         // the same shape, strides of its own
  void* dx;              // [outer, cols, inner], contiguous
  void* workspace;       // workspace_words() of 4 bytes, null for none
  int64_t rows;          // outer * inner, the number of softmaxes
  int64_t cols;          // values in each
  int64_t inner;         // 1: along the last dimension
  int64_t grad_stride;   // elements from one outer index of grad to the next
  int64_t y_stride;      // and of y
  int64_t grad_columns;  // elements from one column of grad to the next
  int64_t y_columns;     // and of y
  Dtype dtype;           // of all three
  bool log;
};

inline const char* needs_rows(const SoftmaxBackwardArgs& a) {
  return a.inner == 1 ? nullptr : "works along the last dimension";
}

inline const char* needs_packs(const SoftmaxBackwardArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  const int width = 16 / size_of(a.dtype);
  const bool packs = tiles_rows(a.grad, a.rows, a.cols, a.grad_stride, a.dtype, width) &&
                     tiles_rows(a.y, a.rows, a.cols, a.y_stride, a.dtype, width);
  return packs ? nullptr : "needs rows aligned to 16 bytes";
}

// Words of 4 bytes: the sum of every chunk that `columns` cuts.
inline int64_t workspace_words(const SoftmaxBackwardArgs& a) {
  const int64_t chunks = a.inner > 1 ? chunks_of(a.cols) : 1;
  return chunks > 1 ? chunks * a.rows : 0;
}

}  // namespace warpsmith
