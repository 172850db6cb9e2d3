// What the bindings of softmax over attention scores share: the checks of bias and mask, and how they lie over x.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/checks.h"
#include "row/operands.h"
#include "softmax/logits.h"

namespace warpsmith {

inline void check_broadcasts(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& x) {
  check_same_device(op, name, tensor, x);
  const Sizes sizes = tensor.sizes(), wanted = x.sizes();
  bool broadcasts = sizes.size() <= wanted.size();
  for (size_t i = 1; broadcasts && i <= sizes.size(); ++i) {
    const int64_t size = sizes[sizes.size() - i];
    broadcasts = size == 1 || size == wanted[wanted.size() - i];
  }
  if (broadcasts) return;
  fail(op, "expected ", name, " to be broadcastable to the shape ", shape_text(wanted), " of x, got ",
       shape_text(sizes));
}

// An additive operand: the dtype of x, or f32.
inline bool is_bias_dtype(ScalarType type, const Tensor& x) {
  return type == x.scalar_type() || type == ScalarType::Float;
}

inline std::string bias_dtypes(const Tensor& x) {
  const std::string own = dtype_name(x.scalar_type());
  return x.scalar_type() == ScalarType::Float ? own : own + " or torch.float32";
}

inline void check_bias(std::string_view op, const Tensor& bias, const Tensor& x) {
  check_broadcasts(op, "bias", bias, x);
  const ScalarType type = bias.scalar_type();
  if (!is_bias_dtype(type, x)) fail(op, "expected bias to have dtype ", bias_dtypes(x), ", got ", dtype_name(type));
}

inline void check_bool_mask(std::string_view op, const Tensor& mask, const Tensor& x) {
  check_broadcasts(op, "mask", mask, x);
  const ScalarType type = mask.scalar_type();
  if (type != ScalarType::Bool) fail(op, "expected mask to have dtype torch.bool, got ", dtype_name(type));
}

// The rows of each matrix of x [..., queries, keys].
inline int64_t queries_of(const Tensor& x) { return x.dim() > 1 ? x.size(x.dim() - 2) : 1; }

// Replaces an operand by a copy where a kernel cannot read it: strided columns, or more dimensions than rows unfold into.
inline void make_readable(std::optional<Tensor>& operand, const Tensor& x) {
  if (!operand) return;
  const int64_t last = operand->dim() - 1;
  if (x.dim() - 1 > kMostLeading) {
    std::array<StableIValue, 3> stack{torch::stable::detail::from(*operand), torch::stable::detail::from(x.sizes()),
                                      torch::stable::detail::from(false)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::expand", "", stack.data(), TORCH_ABI_VERSION));
    operand = torch::stable::contiguous(torch::stable::detail::to<Tensor>(stack[0]));
  } else if (last >= 0 && operand->size(last) != 1 && operand->stride(last) > 1) {
    operand = torch::stable::contiguous(*operand);
  }
}

// Strides of an operand along the dimensions of x before the last.
inline std::vector<int64_t> leading_strides(const std::optional<Tensor>& operand, const Tensor& x) {
  const size_t count = x.sizes().size() - 1;
  std::vector<int64_t> strides(count, 0);
  if (!operand) return strides;
  const Sizes sizes = operand->sizes(), own = operand->strides();
  for (size_t d = 0; d < count; ++d) {
    const size_t missing = x.sizes().size() - sizes.size();
    if (d >= missing && sizes[d - missing] != 1) strides[d] = own[d - missing];
  }
  return strides;
}

inline BroadcastOperand as_operand(const std::optional<Tensor>& operand) {
  if (!operand) return {};
  const int64_t last = operand->dim() - 1;
  return {.data = operand->data_ptr(),
          .one_per_row = last < 0 || operand->size(last) == 1 || operand->stride(last) == 0};
}

// The arguments of the logits. x, bias and mask are replaced by copies where need be, and must outlive the launch.
inline LogitArgs logit_args(Tensor& x, std::optional<Tensor>& bias, std::optional<Tensor>& mask, double scale,
                            bool causal) {
  make_readable(bias, x);
  make_readable(mask, x);
  const std::vector<int64_t> bias_strides = leading_strides(bias, x), mask_strides = leading_strides(mask, x);
  const Sizes sizes = x.sizes();
  const int64_t queries = queries_of(x);
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  const std::vector<int64_t> leading(sizes.begin(), sizes.end() - 1);
  const RowShape shape = as_rows(x);
  LogitArgs args{
      .x = x.data_ptr(),
      .leading = {},
      .bias = as_operand(bias),
      .mask = as_operand(mask),
      .rows = shape.rows,
      .cols = shape.cols,
      .x_stride = shape.stride,
      .queries = queries,
      .scale = static_cast<float>(scale),
      .causal = causal,
      .dtype = dtype,
      .bias_dtype = bias ? *kernel_dtype(bias->scalar_type()) : dtype,
  };
  unfold_rows(args, leading.size(), leading.data(), bias_strides.data(), mask_strides.data());
  return args;
}

}  // namespace warpsmith
