// Gradients of layer normalisation. With r = rsqrt(var(x) + eps), xhat = (x - mean(x)) * r and g = grad * weight:
//   dx = r * (g - mean(g) - xhat * mean(g * xhat))
//   dw = sum over rows of grad * xhat        db = sum over rows of grad
#pragma once

#include "norm/backward/args.h"

namespace warpsmith {

struct LayerNormBackwardArgs : NormBackwardArgs {};

}  // namespace warpsmith
