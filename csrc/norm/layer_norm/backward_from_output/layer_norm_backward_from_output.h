// Gradients of layer normalisation from its output y. With r = rstd, xhat = (y - bias) / weight and g = grad * weight:
//   dx = r * (g - mean(g) - xhat * mean(grad * (y - bias)))
//   dw = sum over rows of grad * xhat        db = sum over rows of grad
// Weights of a magnitude below eps are divided by as if they were that large.
#pragma once

#include "norm/backward/args.h"

namespace warpsmith {

// x: the output y. rstd: given.
struct LayerNormBackwardFromOutputArgs : NormBackwardArgs {};

}  // namespace warpsmith
