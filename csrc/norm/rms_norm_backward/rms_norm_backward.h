// Gradients of RMS normalisation. With r = rsqrt(mean(x^2) + eps) and xhat = x * r:
//   dx = r * (grad * weight - xhat * mean(grad * weight * xhat))        dw = sum over rows of grad * xhat
#pragma once

#include "norm/backward.h"

namespace warpsmith {

struct RmsNormBackwardArgs : NormBackwardArgs {};

inline const char* needs_packs(const RmsNormBackwardArgs& a) {
  return tiles_packs(a) ? nullptr : "needs rows and weight aligned to 16 bytes";
}

}  // namespace warpsmith
