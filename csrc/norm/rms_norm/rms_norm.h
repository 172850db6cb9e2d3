// RMS normalisation of rows: y = x * rsqrt(mean(x^2) + eps) * weight.
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct RmsNormArgs {
  const void* x;       // [rows, cols], columns contiguous
  const void* weight;  // [cols], null for none
  void* y;             // [rows, cols], contiguous
  int64_t rows, cols;
  int64_t x_stride;  // elements from one row of x to the next
  float eps;
  Dtype dtype;         // of x and y
  Dtype weight_dtype;  // f32 or that of x
  Dtype accumulator;   // f32 or that of x
};

inline const char* needs_pairs(const RmsNormArgs& a) {
  const bool pairs =
      tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, 2) && tiles_weight(a.weight, a.weight_dtype, 2);
  return pairs ? nullptr : "needs rows and weight aligned to 2 elements";
}

inline const char* needs_packs(const RmsNormArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const bool packs =
      tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) && tiles_weight(a.weight, a.weight_dtype, width);
  return packs ? nullptr : "needs rows and weight aligned to 16 bytes";
}

}  // namespace warpsmith
