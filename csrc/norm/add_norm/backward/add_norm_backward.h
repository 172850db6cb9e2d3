// Gradients of h = x + residual and y = norm(h). With xhat = (h - mean) * rstd, g = grad * weight, and neither mean in RMS
// norm, which subtracts none:
//   dh = rstd * (g - mean(g) - xhat * mean(g * xhat)) + grad_h
//   dw = sum over rows of grad * xhat        db = sum over rows of grad
// mean and rstd come from h again, so that the forward pass keeps h only.
#pragma once

#include "norm/backward/args.h"

namespace warpsmith {

// x: h. dx and grad_x: dh and grad_h. branch_dx: dx.
struct AddNormBackwardArgs : NormBackwardArgs {};

}  // namespace warpsmith
