// Layer normalisation of rows: y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias, with the variance of the
// population.
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct LayerNormArgs {
  const void* x;       // [rows, cols], columns contiguous
  const void* weight;  // [cols], null for none
  const void* bias;    // [cols], null for none
  void* y;             // [rows, cols], contiguous
  float* rstd;         // [rows], rsqrt(var + eps); null where it is not asked for
  int64_t rows, cols;
  int64_t x_stride;  // elements from one row of x to the next
  float eps;
  Dtype dtype;         // of x and y
  Dtype weight_dtype;  // of weight and bias: f32 or that of x
  Dtype accumulator;   // f32 or that of x
};

inline bool tiles(const LayerNormArgs& a, int width) {
  return tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) && tiles_weight(a.weight, a.weight_dtype, width) &&
         tiles_weight(a.bias, a.weight_dtype, width);
}

inline const char* needs_pairs(const LayerNormArgs& a) {
  return tiles(a, 2) ? nullptr : "needs rows, weight and bias aligned to 2 elements";
}

inline const char* needs_packs(const LayerNormArgs& a) {
  return tiles(a, 16 / size_of(a.dtype)) ? nullptr : "needs rows, weight and bias aligned to 16 bytes";
}

}  // namespace warpsmith
