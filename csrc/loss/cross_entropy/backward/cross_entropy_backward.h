// The gradient of cross-entropy with respect to the logits, from the log-sum-exp of the forward pass.
#pragma once

#include "loss/cross_entropy.h"

namespace warpsmith {

struct CrossEntropyBackwardArgs {
  CrossEntropyInput in;
  const float* lse;        // [rows], lse_stride apart
  const float* grad_loss;  // [rows], grad_loss_stride apart
  const float* grad_lse;   // [rows], grad_lse_stride apart
  void* dlogits;           // [rows, cols], columns contiguous; may be the logits themselves
  int64_t lse_stride, grad_loss_stride, grad_lse_stride;
  int64_t dlogits_stride;  // elements from one row of dlogits to the next
};

}  // namespace warpsmith
