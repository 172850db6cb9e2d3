// What the bindings of a convolution and its gradients ask of their operands.
#pragma once

#include <string>
#include <string_view>

#include "host/checks.h"
#include "host/tensor.h"
#include "vision/conv1d_group_norm/conv1d.h"

namespace warpsmith {

inline void check_conv1d(std::string_view op, const Tensor& x, const Tensor& weight) {
  check_wide_floating(op, "x", x);
  if (x.dim() != 3 || x.size(1) == 0 || x.size(2) == 0) {
    fail(op, "expected x to have shape (n, c, l) with channels and positions, got ", shape_text(x.sizes()));
  }
  check_device_like(op, "weight", weight, x, "x");
  if (weight.scalar_type() != x.scalar_type()) {
    fail(op, "expected weight to have dtype ", dtype_name(x.scalar_type()), " like x, got ",
         dtype_name(weight.scalar_type()));
  }
  if (weight.dim() != 3 || weight.size(0) == 0 || weight.size(1) != x.size(1) || weight.size(2) < 1 ||
      weight.size(2) > kMostTaps) {
    fail(op, "expected weight to have shape (channels, ", std::to_string(x.size(1)), ", 1 to 7), got ",
         shape_text(weight.sizes()));
  }
}

inline Conv1dShape conv1d_shape(const Tensor& x, const Tensor& weight) {
  return {.n = x.size(0),
          .c_in = x.size(1),
          .c_out = weight.size(0),
          .length = x.size(2),
          .taps = static_cast<int>(weight.size(2))};
}

}  // namespace warpsmith
