// The types of a product's operands and sums.
#pragma once

#include "gemm/gemm.h"

namespace warpsmith {

// Calls body.template operator()<T, Acc>() for the type of the operands and that of the sums.
template <class Body>
void visit_types(const GemmArgs& p, Body&& body) {
  if (p.accumulator == Dtype::f16) return body.template operator()<f16, f16>();
  dispatch_float(p.dtype, [&]<class T>() { body.template operator()<T, float>(); });
}

// The same for operands of 16 bits.
template <class Body>
void visit_16_bit_types(const GemmArgs& p, Body&& body) {
  if (p.accumulator == Dtype::f16) return body.template operator()<f16, f16>();
  p.dtype == Dtype::f16 ? body.template operator()<f16, float>() : body.template operator()<bf16, float>();
}

}  // namespace warpsmith
