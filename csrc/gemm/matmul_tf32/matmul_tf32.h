// Products of f32 matrices on tensor cores, which multiply TF32: each operand rounded to 10 bits of mantissa, to
// nearest, ties away from zero or to even, whichever costs a rung less. Sums are f32.
#pragma once

#include "gemm/gemm.h"

namespace warpsmith {

// d = a b and nothing else: c, alpha, beta and activation stay at their neutral values.
struct Tf32Args : GemmArgs {};

// Tensor cores add by truncation, which pulls a sum towards zero by half an ulp every eight values of k. So they add up
// this many values at most; such sums are joined in registers by additions that round to nearest.
//   Fasi et al. 2021, Numerical behavior of NVIDIA tensor cores, https://doi.org/10.7717/peerj-cs.330
inline constexpr int kTensorCoreDepth = 64;

// The same where registers have no room for a second set of sums, which are then joined in the product itself. Of
// products of n(0, 1), truncation then costs a sum 5e-3 at most, less than what it moves by when the operands move by an
// ulp of f32 and one of them is rounded the other way.
inline constexpr int kLongTensorCoreDepth = 4096;

}  // namespace warpsmith
