// Weights of normalised heads as bindings get them, checked in the words of kernels/warpsmith/transform/qk_norm_rope.py.
#pragma once

#include "rotary/operands.h"
#include "transform/qk_norm_rope/qk_norm_rope.h"

namespace warpsmith {

inline void check_head_weight(std::string_view op, std::string_view name, const Tensor& weight, const Tensor& q) {
  check_device_like(op, name, weight, q, "q");
  if (weight.scalar_type() != ScalarType::Float && weight.scalar_type() != q.scalar_type()) {
    fail(op, "expected ", name, " to have dtype torch.float32 or that of q, ", dtype_name(q.scalar_type()), ", got ",
         dtype_name(weight.scalar_type()));
  }
  if (weight.dim() != 1 || weight.size(0) != q.size(3)) {
    fail(op, "expected ", name, " to have shape (", std::to_string(q.size(3)), ",), one value for each of a head, got ",
         shape_text(weight.sizes()));
  }
}

inline void check_head_weights(std::string_view op, const Tensor& q, const Tensor& q_weight, const Tensor& k_weight) {
  check_head_weight(op, "q_weight", q_weight, q);
  check_head_weight(op, "k_weight", k_weight, q);
  if (k_weight.scalar_type() != q_weight.scalar_type()) {
    fail(op, "expected k_weight to have dtype ", dtype_name(q_weight.scalar_type()), " like q_weight, got ",
         dtype_name(k_weight.scalar_type()));
  }
}

}  // namespace warpsmith
