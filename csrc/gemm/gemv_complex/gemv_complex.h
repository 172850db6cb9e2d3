// A complex matrix times a few complex vectors, all of them as pairs of a real and an imaginary part.
#pragma once

#include <cstdint>

#include "host/dtype.h"
#include "row/rows.h"

namespace warpsmith {

struct GemvComplexArgs {
  const void* a;                 // [m, k, 2], any strides
  const void* x;                 // [vectors, k, 2], contiguous
  void* y;                       // [vectors, m, 2], contiguous
  int64_t m, k;                  // not 0
  int vectors;                   // at least 1
  int64_t a_row, a_col, a_part;  // elements from one row, column, part of a to the next
  Dtype dtype;                   // of a, x and y
};

inline const char* needs_countable(const GemvComplexArgs& a) {
  return a.m <= kMostRows && a.k <= kMostRows / 2 ? nullptr : "needs m of at most 2^31 - 1, and half as much for k";
}

inline bool tiles_weights(const GemvComplexArgs& a) {
  return a.a_part == 1 && (a.k == 1 || a.a_col == 2) &&
         tiles_rows(a.a, a.m, 2 * a.k, a.a_row, a.dtype, 16 / size_of(a.dtype));
}

inline const char* needs_packs(const GemvComplexArgs& a) {
  if (const char* reason = needs_countable(a)) return reason;
  return tiles_weights(a) ? nullptr : "needs rows aligned to 16 bytes";
}

}  // namespace warpsmith
