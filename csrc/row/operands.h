// What the bindings of row-wise operators share: a tensor as rows, the checks of a weight.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string_view>

#include "host/checks.h"
#include "host/tensor.h"

namespace warpsmith {

// A tensor as [rows, cols] with unit-stride columns.
struct RowShape {
  int64_t rows, cols;
  int64_t stride;  // elements from one row to the next
};

// The leading dimensions merge into one where a single stride walks them; otherwise a copy replaces `tensor`.
inline RowShape as_rows(Tensor& tensor) {
  const Sizes sizes = tensor.sizes(), strides = tensor.strides();
  const size_t last = sizes.size() - 1;
  const int64_t cols = sizes[last];
  int64_t rows = 1, stride = cols;
  bool merges = cols <= 1 || strides[last] == 1;
  for (size_t d = last; d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (rows == 1) {
      stride = strides[d];
    } else {
      merges = merges && strides[d] == stride * rows;
    }
    rows *= sizes[d];
  }
  if (merges) return {rows, cols, stride};
  tensor = torch::stable::contiguous(tensor);
  return {rows, cols, cols};
}

inline void check_rows(std::string_view op, const Tensor& x, std::string_view name = "x") {
  check_floating(op, name, x);
  if (x.dim() == 0) fail(op, "expected at least 1 dimension in ", name, ", got shape ()");
}

// One weight per column, in the dtype of x or in f32. `like` is how messages call x.
inline void check_weight(std::string_view op, const Tensor& weight, const Tensor& x, std::string_view name = "weight",
                         std::string_view like = "x") {
  check_device_like(op, name, weight, x, like);
  const int64_t n = x.size(x.dim() - 1);
  if (weight.dim() != 1 || weight.size(0) != n) {
    fail(op, "expected ", name, " to have shape (", std::to_string(n), ",), the last dimension of ", like, ", got ",
         shape_text(weight.sizes()));
  }
  const ScalarType type = weight.scalar_type();
  if (type == x.scalar_type() || type == ScalarType::Float) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(x.scalar_type()),
       x.scalar_type() == ScalarType::Float ? "" : " or torch.float32", ", got ", dtype_name(type));
}

// As a weight, and of the dtype of the weight where there is one.
inline void check_bias(std::string_view op, const Tensor& bias, const std::optional<Tensor>& weight, const Tensor& x,
                       std::string_view like = "x") {
  check_weight(op, bias, x, "bias", like);
  if (!weight || bias.scalar_type() == weight->scalar_type()) return;
  fail(op, "expected bias to have dtype ", dtype_name(weight->scalar_type()), " like weight, got ",
       dtype_name(bias.scalar_type()));
}

}  // namespace warpsmith
