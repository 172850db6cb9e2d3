// Quantisation to 8 bits with scales that follow from the values: scale = max(amax / largest, 2^-126), q = round(y / scale).
// y is x, its RMS norm, or silu(x) up, in f32.
#pragma once

#include <cstdint>

#include "host/conditions.h"
#include "row/rows.h"

namespace warpsmith {

// What shares a scale. The last two are 128 values of a row, and 128 x 128 of a matrix.
enum class Sharers : int { tensor, row, group, block };

enum class Values : int { plain, rms_norm, silu_and_mul };

inline constexpr int kGroup = 128;
inline constexpr int kMostPartials = 1024;  // blocks that look for the largest of a whole tensor

struct QuantizeArgs {
  const void* x;       // [rows, cols], columns contiguous; contiguous where the tensor shares a scale
  const void* up;      // like x, of silu_and_mul
  const void* weight;  // [cols], of rms_norm, or nullptr
  void* q;             // [rows, cols], contiguous
  float* scale;        // one; [rows]; [rows, cols / 128]; [rows / 128, cols / 128], rounded up
  uint32_t* partials;  // [kMostPartials], where the tensor shares a scale
  int64_t rows, cols;
  int64_t x_stride, up_stride;  // elements from one row to the next
  float eps;
  float weight_offset;  // 1 where the weight is stored as its distance from one
  Sharers sharers;
  Values values;
  Dtype dtype;         // of x and up: f32, f16 or bf16
  Dtype weight_dtype;  // that of x, or f32
  Dtype q_dtype;       // e4m3, e5m2 or i8
  int sm_count;
};

// Rows in packs of 16 bytes.
inline const char* needs_packs(const QuantizeArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const bool tiles = tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) &&
                     (a.up == nullptr || tiles_rows(a.up, a.rows, a.cols, a.up_stride, a.dtype, width)) &&
                     tiles_weight(a.weight, a.weight_dtype, width);
  return tiles ? nullptr : "needs rows and weight aligned to 16 bytes";
}

}  // namespace warpsmith
