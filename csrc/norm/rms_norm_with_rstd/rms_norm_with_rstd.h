// RMS normalisation of rows that keeps what its gradient from the output takes: rstd = rsqrt(mean(x^2) + eps).
#pragma once

#include "norm/rms_norm/rms_norm.h"

namespace warpsmith {

// Sums in f32.
struct RmsNormWithRstdArgs : RmsNormArgs {
  float* rstd;  // [rows]
};

}  // namespace warpsmith
