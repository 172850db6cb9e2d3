// Gradients of RMS normalisation from its output y. With r = rstd and xhat = y / weight:
//   dx = r * (grad * weight - xhat * mean(grad * y))        dw = sum over rows of grad * xhat
// Weights of a magnitude below eps are divided by as if they were that large.
#pragma once

#include "norm/backward/args.h"

namespace warpsmith {

// x: the output y. rstd: given.
struct RmsNormBackwardFromOutputArgs : NormBackwardArgs {};

}  // namespace warpsmith
