// Products of f32 matrices on tensor cores, which multiply TF32: each operand rounded to 10 bits of mantissa, to
// nearest, ties away from zero. Sums are f32.
#pragma once

#include "gemm/gemm.h"

namespace warpsmith {

// d = a b and nothing else: c, alpha, beta and activation stay at their neutral values.
struct Tf32Args : GemmArgs {};

// Tensor cores add by truncation, which biases a sum towards zero by half an ulp every eight values of k. So they add
// up this many values at most; such sums are joined by ordinary additions, rounded to nearest.
//   Fasi et al. 2021, Numerical behavior of NVIDIA tensor cores, https://doi.org/10.7717/peerj-cs.330
inline constexpr int kTensorCoreDepth = 512;

// The same where each join is a round trip to memory. Truncation then costs a sum of n(0, 1) products some 5e-3, less
// than what rounding its operands does when they move by an ulp of f32.
inline constexpr int kLongTensorCoreDepth = 4096;

}  // namespace warpsmith
