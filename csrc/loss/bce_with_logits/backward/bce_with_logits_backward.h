// The gradient of binary cross-entropy with respect to the logits: dx = (sigmoid(x) - t) * grad * scale.
#pragma once

#include <cstdint>

#include "row/rows.h"

namespace warpsmith {

struct BceWithLogitsBackwardArgs {
  const void* x;       // [n]
  const void* target;  // [n]
  const float* grad;   // [n], or [1] where `shared_grad`
  void* dx;            // [n]
  int64_t n;
  float scale;
  Dtype dtype;  // of x, target and dx
  bool shared_grad;
};

inline const char* needs_packs(const BceWithLogitsBackwardArgs& a) {
  const bool aligned = is_aligned(a.x, 16) && is_aligned(a.target, 16) && (a.shared_grad || is_aligned(a.grad, 16));
  return aligned ? nullptr : "needs x, target and gradient aligned to 16 bytes";
}

}  // namespace warpsmith
