// Gradients of h = dropout(x) * row_scale + residual and y = norm(h): dh and the weights' as in add_norm_backward, and
//   dx = dh * row_scale / (1 - p) where x was kept, 0 where it was dropped
// What was dropped is computed again.
#pragma once

#include "device/philox.h"
#include "norm/add_norm_backward/add_norm_backward.h"

namespace warpsmith {

struct DropoutAddNormBackwardArgs : AddNormBackwardArgs {
  const float* row_scale;  // [rows], null for ones
  Dropout dropout;         // of x as a contiguous [rows, cols]
};

}  // namespace warpsmith
