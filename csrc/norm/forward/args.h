// Norms of rows, forward: y = sink(norm(h)) of h = source(x).
//   source      x | x + residual | dropout(x) * row_scale + residual; a sum is rounded to the dtype of residual
//   RMS norm    h * rsqrt(mean(h^2) + eps) * weight
//   layer norm  (h - mean(h)) * rsqrt(var(h) + eps) * weight + bias, with the variance of the population
//   sink        the dtype of x | fp8, saturate(value * scale): beyond the largest finite value that value, infinities
//               included; NaN stays NaN
// The norm reads the rounded h, so that y is the norm of the h that is handed out.
#pragma once

#include <cstdint>

#include "device/philox.h"
#include "host/conditions.h"
#include "host/min_max.h"
#include "row/rows.h"

namespace warpsmith {

struct NormArgs {
  const void* x;           // [rows, cols], columns contiguous
  const void* residual;    // [rows, cols], columns contiguous; null for zeros
  const void* weight;      // [cols], null for ones
  const void* bias;        // [cols], null for zeros; layer norm only
  void* y;                 // [rows, cols], contiguous
  void* h;                 // [rows, cols], contiguous; null where it would be x
  float* rstd;             // [rows], 1 / sqrt(mean(h^2) or var(h), + eps); null where it is not asked for
  const float* row_scale;  // [rows], null for ones
  const float* scale;      // one value, null for 1
  int64_t rows, cols;
  int64_t x_stride, residual_stride;  // elements from one row to the next
  float eps;
  float weight_offset;   // 1 for a weight that is centred at zero
  bool layer;            // layer norm instead of RMS norm
  Dtype dtype;           // of x
  Dtype residual_dtype;  // of residual and h: f32 or that of x
  Dtype weight_dtype;    // of weight and bias: f32 or that of x
  Dtype y_dtype;         // that of x, e4m3 or e5m2
  Dtype accumulator;     // f32 or that of x
  Dropout dropout;       // of x as a contiguous [rows, cols]
};

// Of each ladder.
struct RmsNormArgs : NormArgs {};
struct LayerNormArgs : NormArgs {};
struct AddNormArgs : NormArgs {};
struct DropoutAddNormArgs : NormArgs {};
struct AddNormFp8Args : NormArgs {};

inline int widest_bytes(const NormArgs& a) { return std::max(size_of(a.dtype), size_of(a.residual_dtype)); }

// Accesses of `width` values to everything but y.
inline bool tiles_norm(const NormArgs& a, int width) {
  return tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) &&
         (a.residual == nullptr ||
          tiles_rows(a.residual, a.rows, a.cols, a.residual_stride, a.residual_dtype, width)) &&
         tiles_weight(a.weight, a.weight_dtype, width) && tiles_weight(a.bias, a.weight_dtype, width);
}

inline const char* needs_pairs(const RmsNormArgs& a) {
  return tiles_norm(a, 2) ? nullptr : "needs rows and weight aligned to 2 elements";
}
inline const char* needs_pairs(const LayerNormArgs& a) {
  return tiles_norm(a, 2) ? nullptr : "needs rows, weight and bias aligned to 2 elements";
}

// Accesses of 16 bytes to the wider of x and residual.
inline const char* needs_packs(const NormArgs& a) {
  return tiles_norm(a, 16 / widest_bytes(a)) ? nullptr : "needs rows, weight and bias aligned to 16 bytes";
}
inline const char* needs_packs(const RmsNormArgs& a) {
  return tiles_norm(a, 16 / widest_bytes(a)) ? nullptr : "needs rows and weight aligned to 16 bytes";
}

template <class Args>
const char* takes_packs(const Args& a) {
  return needs_packs(a);
}

inline const char* needs_f32_sums(const NormArgs& a) {
  return a.accumulator == Dtype::f32 ? nullptr : "accumulates in f32";
}

// Of rms_norm's ladder, the rungs that rms_norm_with_rstd has not.
inline bool suits_y_alone(const RmsNormArgs& a) { return a.rstd == nullptr; }

// Bytes of a row in the wider of its dtypes, which decides how many values a 128-bit access brings.
inline int64_t row_bytes(const NormArgs& a) { return a.cols * widest_bytes(a); }

// Rows of x alone, held in registers or streamed through a cluster.
template <int64_t most, class Args>
const char* needs_lone_rows(const Args& a) {
  return unmet({needs_packs(a), needs_f32_sums(a), needs_grid_rows(a.rows), needs_row_bytes<most>(a.cols, a.dtype)});
}

inline Dtype widest(const NormArgs& a) {
  return size_of(a.residual_dtype) > size_of(a.dtype) ? a.residual_dtype : a.dtype;
}

// Sums, held in registers or streamed in chunks.
inline constexpr int64_t kMostSumBytes = 64 << 10, kMostChunkedBytes = 1 << 20;

template <class Args>
const char* needs_sum_registers(const Args& a) {
  return unmet({needs_packs(a), needs_grid_rows(a.rows), needs_row_bytes<kMostSumBytes>(a.cols, widest(a))});
}

template <class Args>
const char* needs_sum_chunks(const Args& a) {
  return unmet({needs_packs(a), needs_row_bytes<kMostChunkedBytes>(a.cols, widest(a))});
}

// What a block's registers hold is faster there.
template <class Args>
bool suits_sum_chunks(const Args& a) {
  return row_bytes(a) > kMostSumBytes;
}

}  // namespace warpsmith
