// Cross-entropy of every row and its gradient with respect to the logits, in one operation.
#pragma once

#include "loss/cross_entropy.h"

namespace warpsmith {

struct CrossEntropyWithGradArgs {
  CrossEntropyInput in;
  const float* grad_loss;  // [rows], grad_loss_stride apart; null for ones
  float* loss;             // [rows]
  float* lse;              // [rows]
  void* dlogits;           // [rows, cols], columns contiguous; may be the logits themselves
  int64_t grad_loss_stride;
  int64_t dlogits_stride;  // elements from one row of dlogits to the next
};

// What the rungs ask that read and write in packs.
inline const char* needs_packs(const CrossEntropyWithGradArgs& a) {
  if (const char* reason = needs_peelable(a.in)) return reason;
  const bool alike = peel_alike(a.in.logits, a.in.logits_stride, a.dlogits, a.dlogits_stride, a.in.rows, a.in.dtype);
  return alike ? nullptr : "needs logits and gradient at the same offset from 16 bytes";
}

}  // namespace warpsmith
