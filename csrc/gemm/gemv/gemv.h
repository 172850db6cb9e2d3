// Matrix times a few vectors: y[v, row] = a[row, 0] x[v, 0] + ... + a[row, k - 1] x[v, k - 1].
#pragma once

#include <cstdint>

#include "gemm/column_slices.h"
#include "gemm/skinny.h"
#include "host/dtype.h"
#include "host/min_max.h"
#include "row/rows.h"

namespace warpsmith {

struct GemvArgs {
  const void* a;     // [m, k], the weights, any strides
  const void* x;     // [vectors, k], columns contiguous; rows as aligned as whatever meets them along k is read
  void* y;           // [vectors, m], contiguous
  float* workspace;  // [slices of k, vectors, m] for rungs that cut k into slices
  int64_t m, k;      // not 0
  int vectors;       // 1 to kMostVectors
  int64_t a_row;     // elements from one row of a to the next
  int64_t a_col;     // elements from one column of a to the next
  int64_t x_row;     // elements from one vector to the next
  int sm_count;
  Dtype dtype;        // of a, x and y
  Dtype accumulator;  // f32, or f16 of f16
};

// --- what rungs take ------------------------------------------------------------------------------

inline const char* needs_f32_accumulator(const GemvArgs& a) {
  return a.accumulator == Dtype::f32 ? nullptr : "accumulates in f32";
}

inline bool has_contiguous_rows(const GemvArgs& a) { return a.k == 1 || a.a_col == 1; }
inline bool has_contiguous_columns(const GemvArgs& a) { return a.m == 1 || a.a_row == 1; }

// A grid counts the rows, an int the values of a row.
inline const char* needs_countable(const GemvArgs& a) {
  return a.m <= kMostRows && a.k <= kMostRows ? nullptr : "needs m and k of at most 2^31 - 1";
}

inline const char* needs_rows(const GemvArgs& a) {
  if (const char* reason = needs_countable(a)) return reason;
  return has_contiguous_rows(a) ? nullptr : "needs weights with contiguous rows";
}

inline bool tiles_weights(const GemvArgs& a, int width) {
  return has_contiguous_rows(a) && tiles_rows(a.a, a.m, a.k, a.a_row, a.dtype, width);
}

inline const char* needs_packs(const GemvArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  return tiles_weights(a, 16 / size_of(a.dtype)) ? nullptr : "needs rows aligned to 16 bytes";
}

inline const char* needs_packs_in_f32(const GemvArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return needs_f32_accumulator(a);
}

// Columns are read in packs where they are aligned to 16 bytes and whole packs long.
inline bool columns_in_packs(const GemvArgs& a) {
  return has_contiguous_columns(a) && tiles_rows(a.a, a.k, a.m, a.a_col, a.dtype, 16 / size_of(a.dtype));
}

inline const char* needs_columns(const GemvArgs& a) {
  if (const char* reason = needs_countable(a)) return reason;
  return has_contiguous_columns(a) ? nullptr : "needs weights with contiguous columns";
}

// Of the vectors too, which lie along k.
inline const char* needs_column_packs(const GemvArgs& a) {
  if (const char* reason = needs_columns(a)) return reason;
  if (!columns_in_packs(a)) return "needs columns aligned to 16 bytes";
  return a.k % (16 / size_of(a.dtype)) == 0 ? nullptr : "needs k of whole packs of 16 bytes";
}

// --- how k is cut into slices ---------------------------------------------------------------------

inline constexpr int kSplitRows = 4;      // rows of a block of split_k
inline constexpr int kColumnsLanes = 32;  // packs, or single values, along m that a block of columns holds

inline int split_k_slices(const GemvArgs& a) {
  constexpr int kLeastBytes = 8192;  // of each row in a slice
  return slices_of_k((a.m + kSplitRows - 1) / kSplitRows, 8 * a.sm_count, a.k * size_of(a.dtype) / kLeastBytes);
}

// Values of a column that a thread of columns.cu reads at a time.
inline int columns_width(const GemvArgs& a) { return columns_in_packs(a) ? 16 / size_of(a.dtype) : 1; }
inline int64_t columns_of_block(const GemvArgs& a) { return kColumnsLanes * columns_width(a); }

// Of columns.cu, for so many vectors at a time.
inline int columns_vectors(const GemvArgs& a) { return a.vectors == 1 ? 1 : a.vectors <= 4 ? 4 : 8; }
// Blocks that a multiprocessor holds, by their registers: columns are read `width` values of `size` bytes at a time.
constexpr int columns_blocks(int size, int width, int vectors) {
  if (vectors == 1) return size == 4 && width > 1 ? 3 : 4;
  return width == 1 && vectors == 4 ? 3 : 2;
}

inline int columns_slices(const GemvArgs& a) {
  const int vectors = columns_vectors(a);
  const int64_t blocks = ceil_div(a.m, columns_of_block(a)) * ceil_div(a.vectors, vectors);
  const int held = columns_blocks(size_of(a.dtype), columns_width(a), vectors);
  return slices_in_waves(blocks, int64_t{held} * a.sm_count, a.k);
}

inline int skinny_columns_slices(const GemvArgs& a) {
  return skinny_columns_slices(a.m, a.k, size_of(a.dtype), a.sm_count);
}

inline int skinny_slices(const GemvArgs& a) { return skinny_ring_slices(a.m, a.k * size_of(a.dtype), a.sm_count); }

// The call as kernels for row-major weights see it.
inline SkinnyArgs as_skinny(const GemvArgs& a, int slices) {
  return {
      .a = a.a,
      .x = a.x,
      .y = a.y,
      .scale = nullptr,
      .partial = slices > 1 ? a.workspace : nullptr,
      .m = a.m,
      .k = a.k,
      .vectors = a.vectors,
      .splits = slices,
      .a_row = a.a_row,
      .x_row = a.x_row,
      .y_row = a.m,
      .scale_step = 0,
  };
}

}  // namespace warpsmith
