// Gradients of the row-wise normalisations, plain or behind a residual addition: what their kernels are given, and what
// their rungs ask of it. Formulas are in the headers of the operators.
#pragma once

#include <cstdint>

#include "device/philox.h"
#include "host/conditions.h"
#include "host/min_max.h"
#include "row/rows.h"

namespace warpsmith {

struct NormBackwardArgs {
  const void* grad;        // [rows, cols], columns contiguous: of the norm's output
  const void* x;           // [rows, cols], columns contiguous; the norm's input, or the output it is recomputed from
  const void* grad_x;      // [rows, cols], columns contiguous: what reaches x past the norm; null for zeros
  const void* weight;      // [cols], null for none
  const void* bias;        // [cols], null for none and where no gradient depends on it
  const float* rstd;       // [rows], null unless the forward pass has kept it
  const float* row_scale;  // [rows], null for ones
  void* dx;                // [rows, cols], contiguous
  void* branch_dx;         // [rows, cols], contiguous: of what was added to the residual; null where dx will do
  void* dw;                // [cols], null without a weight
  void* db;                // [cols], null without a bias
  float* partial_dw;       // [most_partials, cols] workspace: sums of dw over some of the rows; null without a weight
  float* partial_db;       // [most_partials, cols] workspace: the same for db; null without a bias
  float* stats;            // [rows, 2] workspace; null without a weight
  int64_t rows, cols;
  int64_t grad_stride, x_stride, grad_x_stride;  // elements from one row to the next
  int64_t most_partials;
  float eps;
  float weight_offset;  // 1 for a weight that is centred at zero
  bool layer;           // of the operators that share a ladder: layer norm instead of RMS norm
  Dtype grad_dtype;     // of grad and branch_dx: that of x, or beside f32 rows a narrower one
  Dtype dtype;          // of x, grad_x and dx
  Dtype weight_dtype;   // of weight, bias, dw and db: f32 or that of grad
  Dropout dropout;      // of the branch as a contiguous [rows, cols]
};

// How many partial sums of dw a call may leave: enough to keep every multiprocessor busy, few enough that writing and
// reading them back costs little beside the rows themselves.
inline int64_t partials_for(int64_t rows, int64_t cols, int sm_count) {
  const int64_t per_sm = clamp<int64_t>(16384 / cols, 2, 8);
  const int64_t wanted = cols <= 8192 ? per_sm * sm_count : std::max<int64_t>(16, 2 * sm_count * 8192 / cols);
  return std::min(rows, wanted);
}

// Columns that one block holds in registers, and a cluster of them.
inline constexpr int64_t kMostBackwardRegisters = 8192, kMostBackwardCluster = 262144;

// Whether 128-bit accesses to x, and as wide ones to what comes with it, tile everything that is read.
inline const char* needs_backward_packs(const NormBackwardArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const bool packs = tiles_rows(a.grad, a.rows, a.cols, a.grad_stride, a.grad_dtype, width) &&
                     tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) &&
                     tiles_rows(a.grad_x, a.rows, a.cols, a.grad_x_stride, a.dtype, width) &&
                     tiles_weight(a.weight, a.weight_dtype, width) && tiles_weight(a.bias, a.weight_dtype, width);
  if (packs) return nullptr;
  return a.bias == nullptr ? "needs rows and weight aligned to 16 bytes"
                           : "needs rows, weight and bias aligned to 16 bytes";
}

template <class Args>
const char* needs_backward_registers(const Args& a) {
  if (const char* reason = needs_backward_packs(a)) return reason;
  return a.cols <= kMostBackwardRegisters ? nullptr : "needs at most 8192 columns";
}

template <class Args>
const char* needs_backward_cluster(const Args& a) {
  if (const char* reason = needs_backward_packs(a)) return reason;
  return a.cols <= kMostBackwardCluster ? nullptr : "needs at most 262144 columns";
}

template <class Args>
bool suits_backward_cluster(const Args& a) {
  return a.cols > kMostBackwardRegisters;
}

}  // namespace warpsmith
