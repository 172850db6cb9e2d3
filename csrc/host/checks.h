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

inline void check_device_like(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& x,
                              std::string_view like) {
  if (tensor.is_cuda() == x.is_cuda() && tensor.get_device_index() == x.get_device_index()) return;
  fail(op, "expected ", name, " to be on ", device_text(x), " like ", like, ", got ", device_text(tensor));
}

// Device, dtype and shape as those of `x`, which messages call `like`.
inline void check_like(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& x,
                       std::string_view like) {
  check_device_like(op, name, tensor, x, like);
  if (tensor.scalar_type() != x.scalar_type()) {
    fail(op, "expected ", name, " to have dtype ", dtype_name(x.scalar_type()), " like ", like, ", got ",
         dtype_name(tensor.scalar_type()));
  }
  const Sizes a = tensor.sizes(), b = x.sizes();
  if (a.size() != b.size() || !std::equal(a.begin(), a.end(), b.begin())) {
    fail(op, "expected ", name, " to have shape ", shape_text(b), " like ", like, ", got ", shape_text(a));
  }
}

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

// f32, f16 and bf16 have kernels.
inline bool has_float_kernel(const Tensor& x) {
  const auto dtype = kernel_dtype(x.scalar_type());
  return dtype == Dtype::f32 || dtype == Dtype::f16 || dtype == Dtype::bf16;
}

}  // namespace warpsmith
