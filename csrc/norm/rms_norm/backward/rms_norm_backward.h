// Gradients of RMS normalisation. With r = rsqrt(mean(x^2) + eps) and xhat = x * r:
//   dx = r * (grad * weight - xhat * mean(grad * weight * xhat))        dw = sum over rows of grad * xhat
#pragma once

#include "norm/backward/args.h"

namespace warpsmith {

struct RmsNormBackwardArgs : NormBackwardArgs {};

}  // namespace warpsmith
