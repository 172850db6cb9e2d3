// Gradients of layer normalisation from its output y. With r = rstd, xhat = (y - bias) / weight and g = grad * weight:
//   dx = r * (g - mean(g) - xhat * mean(grad * (y - bias)))
//   dw = sum over rows of grad * xhat        db = sum over rows of grad
// Weights of a magnitude below eps are divided by as if they were that large.
#pragma once

#include "norm/backward.h"

namespace warpsmith {

// x: the output y. rstd: given.
struct LayerNormBackwardFromOutputArgs : NormBackwardArgs {};

inline const char* needs_packs(const LayerNormBackwardFromOutputArgs& a) {
  return tiles_packs(a) ? nullptr : "needs rows, weight and bias aligned to 16 bytes";
}

}  // namespace warpsmith
