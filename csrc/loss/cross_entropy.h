// What the three operators around cross-entropy share: the loss of every row of logits against the index of a class,
//
//   loss = (1 - s) (lse - x[target]) + s (lse - mean(x)) + z lse^2,   lse = log(sum(e^x)),
//
// with label smoothing s and the weight z of the z-loss. A row whose target is `ignore_index` has loss, lse and gradient
// 0. One whose target is no class has loss and gradient NaN; nothing is read through such an index.
#pragma once

#include <cstdint>

#include "loss/peeled_row.h"

namespace warpsmith {

struct CrossEntropyInput {
  const void* logits;  // [rows, cols], columns contiguous
  const void* target;  // [rows], int64 or int32
  int64_t rows, cols;
  int64_t logits_stride;  // elements from one row of logits to the next
  int64_t target_stride;
  int64_t ignore_index;
  float label_smoothing, z_loss;
  float smoothing_share;  // label_smoothing / cols
  Dtype dtype;            // of logits
  bool wide_target;       // int64
};

// What every kernel asks that reads rows in packs.
inline const char* needs_peelable(const CrossEntropyInput& in) {
  return in.cols <= kMostPeeledCols ? nullptr : "needs at most 2^30 classes";
}

}  // namespace warpsmith
