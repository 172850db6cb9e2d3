// What the bindings around cross-entropy share: the checks of logits and targets, and their arguments for the kernels.
#pragma once

#include <string_view>

#include "host/checks.h"
#include "loss/cross_entropy.h"
#include "row/operands.h"

namespace warpsmith {

inline void check_cross_entropy(std::string_view op, const Tensor& logits, const Tensor& target,
                                double label_smoothing) {
  check_floating(op, "logits", logits);
  if (logits.dim() != 2) fail(op, "expected logits to have 2 dimensions, got shape ", shape_text(logits.sizes()));
  if (logits.size(1) == 0) fail(op, "expected logits to have at least 1 class, got shape ", shape_text(logits.sizes()));
  check_device_like(op, "target", target, logits, "logits");
  const ScalarType type = target.scalar_type();
  if (type != ScalarType::Long && type != ScalarType::Int) {
    fail(op, "expected target to have dtype torch.int64 or torch.int32, got ", dtype_name(type));
  }
  if (target.dim() != 1 || target.size(0) != logits.size(0)) {
    fail(op, "expected target to have shape (", std::to_string(logits.size(0)), ",), one class per row of logits, got ",
         shape_text(target.sizes()));
  }
  check_share(op, "label_smoothing", label_smoothing);
}

// One number per row of logits: f32, or f64 beside f64 logits.
inline void check_per_row(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& logits) {
  check_device_like(op, name, tensor, logits, "logits");
  const ScalarType wanted = logits.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  if (tensor.scalar_type() != wanted) {
    fail(op, "expected ", name, " to have dtype ", dtype_name(wanted), ", got ", dtype_name(tensor.scalar_type()));
  }
  if (tensor.dim() != 1 || tensor.size(0) != logits.size(0)) {
    fail(op, "expected ", name, " to have shape (", std::to_string(logits.size(0)),
         ",), one number per row of logits, got ", shape_text(tensor.sizes()));
  }
}

// A gradient may only take the place of logits of which every row has memory of its own.
inline void check_rows_apart(std::string_view op, const Tensor& logits) {
  const Sizes sizes = logits.sizes(), strides = logits.strides();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] == 0) fail(op, "expected logits that are not expanded, as they are written to");
  }
}

// A copy takes the place of `logits` where its rows have no single stride.
inline CrossEntropyInput cross_entropy_input(Tensor& logits, const Tensor& target, int64_t ignore_index,
                                             double label_smoothing, double z_loss) {
  const RowShape shape = as_rows(logits);
  const double smoothing = shape.cols == 1 ? 0.0 : label_smoothing;  // nothing to spread over a single class
  return {
      .logits = logits.data_ptr(),
      .target = target.data_ptr(),
      .rows = shape.rows,
      .cols = shape.cols,
      .logits_stride = shape.stride,
      .target_stride = target.strides()[0],
      .ignore_index = ignore_index,
      .label_smoothing = static_cast<float>(smoothing),
      .z_loss = static_cast<float>(z_loss),
      .smoothing_share = static_cast<float>(smoothing / static_cast<double>(shape.cols)),
      .dtype = *kernel_dtype(logits.scalar_type()),
      .wide_target = target.scalar_type() == ScalarType::Long,
  };
}

}  // namespace warpsmith
