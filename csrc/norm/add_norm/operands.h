// What the bindings of the fused residual norms share: checks, and the tensors of a call as kernels want them.
#pragma once

#include <optional>
#include <string_view>

#include "norm/add_norm/add_norm.h"
#include "row/operands.h"

namespace warpsmith {

using OptionalTensor = std::optional<Tensor>;

// Shape and device of x; its dtype, or f32.
inline void check_residual(std::string_view op, std::string_view name, const Tensor& residual, const Tensor& x) {
  check_same_device(op, name, residual, x);
  check_same_shape(op, name, residual, x);
  const ScalarType type = residual.scalar_type();
  if (type == x.scalar_type() || type == ScalarType::Float) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(x.scalar_type()),
       x.scalar_type() == ScalarType::Float ? "" : " or torch.float32", ", got ", dtype_name(type));
}

inline void check_add_norm(std::string_view op, const Tensor& x, const OptionalTensor& residual,
                           const OptionalTensor& weight, const OptionalTensor& bias) {
  check_rows(op, x);
  if (residual) check_residual(op, "residual", *residual, x);
  if (weight) check_weight(op, *weight, x);
  if (bias) check_bias(op, *bias, weight, x);
}

inline ScalarType residual_type(const Tensor& x, const OptionalTensor& residual) {
  return residual ? residual->scalar_type() : x.scalar_type();
}

inline void make_contiguous(OptionalTensor& tensor) {
  if (tensor && !tensor->is_contiguous()) tensor = torch::stable::contiguous(*tensor);
}

// Everything but y and h. Copies take the place of what no kernel can stride over; the caller keeps them alive.
inline AddNormArgs add_norm_args(Tensor& x, OptionalTensor& residual, OptionalTensor& weight, OptionalTensor& bias,
                                 double eps, bool zero_centered, bool layer) {
  const RowShape shape = as_rows(x);
  const int64_t residual_stride = residual ? as_rows(*residual).stride : shape.cols;
  make_contiguous(weight);
  make_contiguous(bias);
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  const OptionalTensor& affine = weight ? weight : bias;
  return {
      .x = x.data_ptr(),
      .residual = residual ? residual->data_ptr() : nullptr,
      .weight = weight ? weight->data_ptr() : nullptr,
      .bias = bias ? bias->data_ptr() : nullptr,
      .y = nullptr,
      .h = nullptr,
      .rows = shape.rows,
      .cols = shape.cols,
      .x_stride = shape.stride,
      .residual_stride = residual_stride,
      .eps = static_cast<float>(eps),
      .weight_offset = weight && zero_centered ? 1.0f : 0.0f,
      .layer = layer,
      .dtype = dtype,
      .residual_dtype = *kernel_dtype(residual_type(x, residual)),
      .weight_dtype = affine ? *kernel_dtype(affine->scalar_type()) : dtype,
  };
}

}  // namespace warpsmith
