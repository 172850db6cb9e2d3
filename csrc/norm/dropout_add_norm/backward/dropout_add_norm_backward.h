// Gradients of h = dropout(x) * row_scale + residual and y = norm(h): dh and the weights' as in add_norm_backward, and
//   dx = dh * row_scale / (1 - p) where x was kept, 0 where it was dropped
// What was dropped is computed again.
#pragma once

#include "norm/backward/args.h"

namespace warpsmith {

// x: h. dx and grad_x: dh and grad_h. branch_dx: dx.
struct DropoutAddNormBackwardArgs : NormBackwardArgs {};

}  // namespace warpsmith
