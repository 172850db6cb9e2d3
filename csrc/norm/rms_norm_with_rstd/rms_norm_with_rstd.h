// RMS normalisation of rows that keeps what its gradient from the output takes:
//   rstd = rsqrt(mean(x^2) + eps)        y = x * rstd * weight
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct RmsNormWithRstdArgs {
  const void* x;       // [rows, cols], columns contiguous
  const void* weight;  // [cols], null for none
  void* y;             // [rows, cols], contiguous
  float* rstd;         // [rows]
  int64_t rows, cols;
  int64_t x_stride;  // elements from one row of x to the next
  float eps;
  Dtype dtype;         // of x and y
  Dtype weight_dtype;  // f32 or that of x
};

}  // namespace warpsmith
