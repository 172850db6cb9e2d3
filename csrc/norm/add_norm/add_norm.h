// Residual addition fused with the normalisation that follows it: h = x + residual, rounded to the dtype of residual, and
//   RMS norm    y = h * rsqrt(mean(h^2) + eps) * weight
//   layer norm  y = (h - mean(h)) * rsqrt(var(h) + eps) * weight + bias
// The norm reads the rounded h, so that y is the norm of the h that is handed out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct AddNormArgs {
  const void* x;         // [rows, cols], columns contiguous
  const void* residual;  // [rows, cols], columns contiguous; null for zeros
  const void* weight;    // [cols], null for ones
  const void* bias;      // [cols], null for zeros; layer norm only
  void* y;               // [rows, cols], contiguous
  void* h;               // [rows, cols], contiguous; null where it would be x
  int64_t rows, cols;
  int64_t x_stride, residual_stride;  // elements from one row to the next
  float eps;
  float weight_offset;   // 1 for a weight that is centred at zero
  bool layer;            // layer norm instead of RMS norm
  Dtype dtype;           // of x and y
  Dtype residual_dtype;  // of residual and h: f32 or that of x
  Dtype weight_dtype;    // of weight and bias: f32 or that of x
};

// Bytes of a row in the wider of its dtypes, which decides how many values a 128-bit access brings.
inline int64_t row_bytes(const AddNormArgs& a) {
  return a.cols * std::max(size_of(a.dtype), size_of(a.residual_dtype));
}

// Accesses of 16 bytes on the wider of x and residual.
inline const char* needs_packs(const AddNormArgs& a) {
  const int width = 16 / std::max(size_of(a.dtype), size_of(a.residual_dtype));
  const bool packs = tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) &&
                     tiles_rows(a.residual, a.rows, a.cols, a.residual_stride, a.residual_dtype, width) &&
                     tiles_weight(a.weight, a.weight_dtype, width) && tiles_weight(a.bias, a.weight_dtype, width);
  return packs ? nullptr : "needs rows, weight and bias aligned to 16 bytes";
}

inline constexpr int64_t kMostRegisterRowBytes = 64 << 10;

inline const char* needs_registers(const AddNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return row_bytes(a) <= kMostRegisterRowBytes ? nullptr : "needs rows of at most 64 KiB";
}

inline constexpr int64_t kMostClusterRowBytes = 1 << 20;

inline const char* needs_cluster(const AddNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return row_bytes(a) <= kMostClusterRowBytes ? nullptr : "needs rows of at most 1 MiB";
}

// What a block's registers hold is faster there.
inline bool suits_cluster(const AddNormArgs& a) { return row_bytes(a) > kMostRegisterRowBytes; }

// Calls body.template operator()<T, R, W>() for the dtypes of x, residual and weight.
template <class Body>
void visit_add_norm_dtypes(const AddNormArgs& a, Body&& body) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    if (std::is_same_v<T, float> || a.residual_dtype == Dtype::f32) {
      body.template operator()<T, float, W>();
    } else {
      body.template operator()<T, T, W>();
    }
  });
}

}  // namespace warpsmith
