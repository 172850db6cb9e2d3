// Gated linear unit along a dimension: y = a logistic(b), a and b the halves of x.
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct GluArgs {
  const void* x;  // [outer, 2, inner], contiguous: inner is half the dimension times what comes after it
  void* y;        // [outer, inner]
  int64_t outer, inner;
  Dtype dtype;  // of x and y
};

inline const char* needs_packs(const GluArgs& a) {
  if (!is_aligned(a.x, 16)) return "needs x aligned to 16 bytes";
  return a.inner % (16 / size_of(a.dtype)) == 0 ? nullptr : "needs halves that are whole packs";
}

}  // namespace warpsmith
