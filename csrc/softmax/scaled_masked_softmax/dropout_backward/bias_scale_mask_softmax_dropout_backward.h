// Gradient of dropout(softmax(z)) and of z's log-sum-exp, with z = x * scale + bias, masked. The probabilities p are
// computed again, and so is what was dropped:
//   dx = scale * p * (g - sum over the row of g * p + grad_lse)        g = grad / (1 - dropout) where kept, else 0
#pragma once

#include "device/philox.h"
#include "softmax/logits.h"

namespace warpsmith {

struct BiasScaleMaskSoftmaxDropoutBackwardArgs {
  LogitArgs logits;
  const void* grad;       // [rows, cols], columns contiguous, dtype of x
  const float* lse;       // [rows]: what the forward pass returned
  const float* grad_lse;  // [rows] or null
  void* dx;               // [rows, cols], contiguous, dtype of x
  int64_t grad_stride;    // elements from one row of grad to the next
  Dropout dropout;
};

inline const char* needs_packs(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) {
  const LogitArgs& logits = a.logits;
  const int width = 16 / size_of(logits.dtype);
  if (const char* reason = needs_packs(logits)) return reason;
  return tiles_rows(a.grad, logits.rows, logits.cols, a.grad_stride, logits.dtype, width)
             ? nullptr
             : "needs rows of grad aligned to 16 bytes";
}

}  // namespace warpsmith
