// The arguments of every elementwise kernel: operands over one merged index space.
#pragma once

#include <cstdint>

#include "device/fast_divide.h"
#include "host/dtype.h"

namespace warpsmith {

inline constexpr int kMaxOperands = 5;  // at most two outputs and three inputs
inline constexpr int kMaxRank = 8;      // dimensions left after merging

struct MapArgs {
  int map;         // index into Maps (parts/)
  Dtype dtype;     // of every operand
  bool has_table;  // a function of one value, or the product of one with the others
  int operands;    // outputs first, then inputs
  int outputs;
  void* data[kMaxOperands];
  float parameter;  // alpha of elu, lambd of hardshrink

  int rank;                                 // dimensions after merging; more than kMaxRank: no kernel
  int64_t sizes[kMaxRank];                  // outermost first
  int64_t strides[kMaxOperands][kMaxRank];  // in elements; 0 broadcasts

  // Rows of unit-stride elements: what all rungs but `strided` work on.
  bool is_rows;
  int64_t rows, cols;
  int64_t pitch[kMaxOperands];  // elements from one row to the next; 0 broadcasts one row
  int alignment;                // bytes: the largest power of two up to 16 that divides every address of a row start
};

inline const char* needs_rows(const MapArgs& a) { return a.is_rows ? nullptr : "needs unit-stride rows"; }

// `width` values per access.
inline const char* needs_width(const MapArgs& a, int width) {
  if (const char* reason = needs_rows(a)) return reason;
  const bool whole = a.rows == 1 || a.cols % width == 0;
  if (a.alignment >= width * size_of(a.dtype) && whole) return nullptr;
  return width == 2 ? "needs data aligned to 2 elements" : "needs data aligned to 16 bytes";
}

inline const char* needs_packs(const MapArgs& a) { return needs_width(a, 16 / size_of(a.dtype)); }

}  // namespace warpsmith
