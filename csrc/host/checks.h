// Checks of arguments that bindings of several families make.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "host/dtype.h"
#include "host/tensor.h"

namespace warpsmith {

// Floating-point values of 16 bits or more.
inline void check_wide_floating(std::string_view op, std::string_view name, const Tensor& x) {
  check_floating(op, name, x);
  const std::optional<Dtype> dtype = kernel_dtype(x.scalar_type());
  if (dtype && is_fp8(*dtype)) {
    fail(op, "expected ", name, " to have at least 16 bits an element, got ", dtype_name(x.scalar_type()));
  }
}

inline void check_share(std::string_view op, std::string_view name, double share) {
  if (share >= 0.0 && share <= 1.0) return;  // not NaN
  char number[32];
  std::snprintf(number, sizeof(number), "%g", share);
  fail(op, "expected ", name, " to be between 0 and 1, got ", number);
}

// `dim` counted from the front. As in PyTorch, a tensor without dimensions passes for one of size 1, and what Python
// gets to see is an IndexError.
inline int64_t check_dim(std::string_view op, const Tensor& x, int64_t dim) {
  const int64_t rank = std::max<int64_t>(x.dim(), 1);
  if (dim >= -rank && dim < rank) return dim < 0 ? dim + rank : dim;
  throw std::out_of_range(std::string(op) + ": expected dim to lie in [" + std::to_string(-rank) + ", " +
                          std::to_string(rank - 1) + "], got " + std::to_string(dim));
}

}  // namespace warpsmith
