// RMS norm or layer norm of h = x + residual, or of x alone, into fp8:
//   y = saturate((norm(h) * weight + bias) * scale)
// Beyond the largest finite value y is that value, infinities included; NaN stays NaN.
#pragma once

#include "norm/add_norm/add_norm.h"

namespace warpsmith {

struct AddNormFp8Args : AddNormArgs {
  const float* scale;  // one value; null for 1
  Dtype y_dtype;       // e4m3 or e5m2
};

}  // namespace warpsmith
