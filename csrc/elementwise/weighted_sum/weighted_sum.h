// The weighted sum of up to eight tensors: y = w0 x0 + w1 x1 + ...
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

inline constexpr int kMostTerms = 8;

struct WeightedSumArgs {
  const void* x[kMostTerms];  // [n] each, all in one order
  float weights[kMostTerms];
  int terms;
  void* y;  // [n]
  int64_t n;
  Dtype dtype;  // of every x and y
};

inline const char* needs_packs(const WeightedSumArgs& a) {
  for (int k = 0; k < a.terms; ++k) {
    if (!is_aligned(a.x[k], 16)) return "needs data aligned to 16 bytes";
  }
  return nullptr;
}

}  // namespace warpsmith
