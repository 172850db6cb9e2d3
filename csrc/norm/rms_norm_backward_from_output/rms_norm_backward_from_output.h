// Gradients of RMS normalisation from its output y. With r = rstd and xhat = y / weight:
//   dx = r * (grad * weight - xhat * mean(grad * y))        dw = sum over rows of grad * xhat
// Weights of a magnitude below eps are divided by as if they were that large.
#pragma once

#include "norm/backward.h"

namespace warpsmith {

// x: the output y. rstd: given.
struct RmsNormBackwardFromOutputArgs : NormBackwardArgs {};

inline const char* needs_packs(const RmsNormBackwardFromOutputArgs& a) {
  return tiles_packs(a) ? nullptr : "needs rows and weight aligned to 16 bytes";
}

}  // namespace warpsmith
