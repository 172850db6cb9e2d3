// Gradients of layer normalisation. With r = rsqrt(var(x) + eps), xhat = (x - mean(x)) * r and g = grad * weight:
//   dx = r * (g - mean(g) - xhat * mean(g * xhat))
//   dw = sum over rows of grad * xhat        db = sum over rows of grad
#pragma once

#include "norm/backward.h"

namespace warpsmith {

struct LayerNormBackwardArgs : NormBackwardArgs {};

inline const char* needs_packs(const LayerNormBackwardArgs& a) {
  return tiles_packs(a) ? nullptr : "needs rows and weight aligned to 16 bytes";
}

}  // namespace warpsmith
