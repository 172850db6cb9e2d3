// Binary cross-entropy with logits: loss = (1 - t) x - log(sigmoid(x)), per element or summed.
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct BceWithLogitsForwardArgs {
  const void* x;       // [n]
  const void* target;  // [n]
  float* loss;         // [n], or [1] where `sums`
  double* partial;     // [blocks], where `sums`: what each block adds up to
  int64_t n;
  int64_t blocks;
  double scale;  // of the sum
  Dtype dtype;   // of x and target
  bool sums;
};

inline const char* needs_packs(const BceWithLogitsForwardArgs& a) {
  const bool aligned = is_aligned(a.x, 16) && is_aligned(a.target, 16);
  return aligned ? nullptr : "needs x and target aligned to 16 bytes";
}

}  // namespace warpsmith
