// Residual norms with dropout on the branch that joins the residual stream, and a factor for each of its rows (stochastic
// depth): h = dropout(x) * row_scale + residual, rounded once, and y = norm(h) as in add_norm.
#pragma once

#include "device/philox.h"
#include "norm/add_norm/add_norm.h"

namespace warpsmith {

struct DropoutAddNormArgs : AddNormArgs {
  const float* row_scale;  // [rows], null for ones
  Dropout dropout;         // of x as a contiguous [rows, cols]
};

}  // namespace warpsmith
