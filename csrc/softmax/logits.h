// Attention scores before their softmax: z = x * scale + bias, -inf where the mask or the causal diagonal excludes.
// x is seen as [rows, cols]; bias and mask are broadcast over its rows and are read where they lie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/fast_divide.h"
#include "host/launch.h"
#include "row/rows.h"

namespace warpsmith {

inline constexpr int kMostLeading = 4;        // dimensions before the last that a row's number unfolds into
inline constexpr int kMostLogitCluster = 16;  // blocks that share a row

// A row's number as indices, the innermost first.
struct LeadingSizes {
  int rank = 1;
  FastDivide size[kMostLeading];
};

// An operand that is broadcast over the rows of x.
struct BroadcastOperand {
  const void* data = nullptr;         // null where there is none
  int64_t stride[kMostLeading] = {};  // elements, by leading dimension; 0 where the operand is repeated
  bool one_per_row = false;           // one value for all columns; otherwise columns are contiguous
};

struct LogitArgs {
  const void* x;  // [rows, cols], columns contiguous
  LeadingSizes leading;
  BroadcastOperand bias;  // dtype of x or f32
  BroadcastOperand mask;  // bool, a byte each; true excludes
  int64_t rows, cols;
  int64_t x_stride;  // elements from one row of x to the next
  int64_t queries;   // rows of each matrix: query i of a causal one sees keys up to i + cols - queries
  float scale;
  bool causal;
  Dtype dtype;  // of x
  Dtype bias_dtype;
};

// Sets the leading sizes and both operands' strides, merging the dimensions that one stride walks in both.
//   sizes: those of x before the last dimension, outermost first. bias, mask: strides along them.
inline void unfold_rows(LogitArgs& a, size_t count, const int64_t* sizes, const int64_t* bias, const int64_t* mask) {
  int rank = 0;
  std::array<int64_t, kMostLeading> merged{};
  for (size_t d = count; d-- > 0;) {
    if (sizes[d] == 1) continue;
    const int last = rank - 1;
    if (rank > 0 && bias[d] == a.bias.stride[last] * merged[last] && mask[d] == a.mask.stride[last] * merged[last]) {
      merged[last] *= sizes[d];
      continue;
    }
    if (rank == kMostLeading) broken_promise("unfold_rows: too many dimensions that do not merge");
    merged[rank] = sizes[d];
    a.bias.stride[rank] = bias[d];
    a.mask.stride[rank] = mask[d];
    ++rank;
  }
  a.leading.rank = rank > 0 ? rank : 1;
  for (int i = 0; i < rank; ++i) a.leading.size[i] = FastDivide(static_cast<uint64_t>(merged[i]));
}

// Whether accesses of `width` values tile the rows of an operand.
inline bool tiles_operand(const BroadcastOperand& operand, int bytes, int width) {
  if (operand.data == nullptr || operand.one_per_row) return true;
  for (const int64_t stride : operand.stride) {
    if (stride % width != 0) return false;
  }
  return is_aligned(operand.data, std::min(width * bytes, 16));
}

inline const char* needs_packs(const LogitArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const bool packs = tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width) &&
                     tiles_operand(a.bias, size_of(a.bias_dtype), width) && tiles_operand(a.mask, 1, width);
  return packs ? nullptr : "needs rows of x, bias and mask aligned to packs of 16 bytes of x";
}

inline const char* needs_cluster_grid(int64_t rows) {
  return rows <= kMostRows / kMostLogitCluster ? nullptr : "needs at most 2^27 - 1 rows";
}

// The row in one warp, in one block, or in one cluster.
inline constexpr int64_t kWarpCols = 2048;
inline constexpr int64_t kBlockBytes = 64 * 1024;
inline constexpr int64_t kClusterBytes = kMostLogitCluster * kBlockBytes;

// The longest row of which a warp makes better work than a block: many packs to a lane, and what belongs to them, leave
// room for few warps. Where half of a causal row need not draw what is dropped, a warp jumps over more of it.
inline int64_t most_warp_cols(const LogitArgs& a, bool drops) {
  return a.dtype != Dtype::f32 && a.causal && drops ? kWarpCols : kWarpCols / 2;
}

}  // namespace warpsmith
