// Checks of steps that bindings make.
#pragma once

#include "host/checks.h"

namespace warpsmith {

// One for each of `n` things; messages call the tensor that they index `like`.
inline void check_steps(std::string_view op, const Tensor& t, const Tensor& x, std::string_view like) {
  check_device_like(op, "t", t, x, like);
  if (t.scalar_type() != ScalarType::Int && t.scalar_type() != ScalarType::Long) {
    fail(op, "expected t to hold int32 or int64, got ", dtype_name(t.scalar_type()));
  }
}

}  // namespace warpsmith
