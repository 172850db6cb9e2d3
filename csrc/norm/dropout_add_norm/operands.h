// What the bindings of the residual norms with dropout share, forward and backward.
#pragma once

#include <string_view>

#include "host/checks.h"
#include "norm/forward/operands.h"

namespace warpsmith {

// One f32 value per row of x.
inline void check_row_scale(std::string_view op, const Tensor& row_scale, const Tensor& x) {
  check_same_device(op, "row_scale", row_scale, x);
  const Sizes sizes = x.sizes();
  const Sizes rows(sizes.data(), sizes.size() - 1), given = row_scale.sizes();
  if (given.size() != rows.size() || !std::equal(rows.begin(), rows.end(), given.begin())) {
    fail(op, "expected row_scale to have shape ", shape_text(rows), ", that of x without its last dimension, got ",
         shape_text(given));
  }
  const ScalarType type = row_scale.scalar_type();
  if (type == ScalarType::Float || (type == ScalarType::Double && x.scalar_type() == ScalarType::Double)) return;
  fail(op, "expected row_scale to have dtype torch.float32, got ", dtype_name(type));
}

inline void check_dropout(std::string_view op, const OptionalTensor& row_scale, double p, const Tensor& x) {
  if (row_scale) check_row_scale(op, *row_scale, x);
  check_share(op, "p", p);
}

inline const float* floats_of(const OptionalTensor& tensor) {
  return tensor ? static_cast<const float*>(tensor->data_ptr()) : nullptr;
}

}  // namespace warpsmith
