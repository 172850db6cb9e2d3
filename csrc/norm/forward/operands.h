// What the bindings of the norms share: checks, outputs, and the tensors of a call as kernels want them.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>

#include "host/into.h"
#include "host/named_of_nothing.h"
#include "host/serve.h"
#include "norm/forward/args.h"
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

// The tensors that a norm is given. `residual` is of operators that add one.
struct NormOperands {
  Tensor x;
  OptionalTensor residual, weight, bias;

  void check(std::string_view op) const {
    check_rows(op, x);
    if (residual) check_residual(op, "residual", *residual, x);
    if (weight) check_weight(op, *weight, x);
    if (bias) check_bias(op, *bias, weight, x);
  }

  Tensor empty_y() const { return empty_contiguous(x, x.sizes(), x.scalar_type()); }
  Tensor y_of(const CallInto& call) const { return result(call, x, x.sizes(), x.scalar_type()); }
  // Where h is not handed out, it has no elements.
  Tensor h_of(const CallInto& call, bool handed_out) const {
    constexpr int64_t kNone = 0;
    if (!handed_out) return empty_contiguous(x, Sizes(&kNone, 1), h_type());
    return result(call, x, x.sizes(), h_type(), 1);
  }
  Tensor empty_rstd() const {
    const Sizes sizes = x.sizes();
    return empty_contiguous(x, Sizes(sizes.data(), sizes.size() - 1), ScalarType::Float);
  }

  // Copies take the place of what no kernel can stride over; they live as long as the operands.
  template <class Args>
  Args args(const Tensor& y, bool layer, double eps) {
    const RowShape shape = as_rows(x);
    const int64_t residual_stride = residual ? as_rows(*residual).stride : shape.cols;
    weight = dense(weight);
    bias = dense(bias);
    const Dtype dtype = *kernel_dtype(x.scalar_type());
    const OptionalTensor& affine = weight ? weight : bias;
    return {{
        .x = x.data_ptr(),
        .residual = residual ? residual->data_ptr() : nullptr,
        .weight = weight ? weight->data_ptr() : nullptr,
        .bias = bias ? bias->data_ptr() : nullptr,
        .y = y.data_ptr(),
        .h = nullptr,
        .rstd = nullptr,
        .row_scale = nullptr,
        .scale = nullptr,
        .rows = shape.rows,
        .cols = shape.cols,
        .x_stride = shape.stride,
        .residual_stride = residual_stride,
        .eps = static_cast<float>(eps),
        .weight_offset = 0.0f,
        .layer = layer,
        .dtype = dtype,
        .residual_dtype = *kernel_dtype(h_type()),
        .weight_dtype = affine ? *kernel_dtype(affine->scalar_type()) : dtype,
        .y_dtype = *kernel_dtype(y.scalar_type()),
        .accumulator = Dtype::f32,
        .dropout = {},
    }};
  }

 private:
  ScalarType h_type() const { return residual ? residual->scalar_type() : x.scalar_type(); }
};

// An accumulator by name: f32, or the dtype of the row.
inline Dtype row_accumulator_of(const Call& call, Dtype dtype) {
  if (call.named != nullptr && call.named->accumulator == name_of(dtype)) return dtype;
  return accumulator_of(call, dtype);
}

// RMS norm and layer norm of x, alone or with the rstd of its rows.
template <class Args>
bool run_norm(const Call& call, NormOperands& given, double eps, Tensor& y, Tensor* rstd) {
  Args args = given.template args<Args>(y, std::is_same_v<Args, LayerNormArgs>, eps);
  args.accumulator = row_accumulator_of(call, args.dtype);
  if (rstd != nullptr) args.rstd = static_cast<float*>(rstd->data_ptr());
  return serve(call, args, y);
}

template <class Args>
OptionalTensor norm_of(const CallInto& call, NormOperands given, double eps) {
  given.check(call.op);
  if (!has_kernel(call, given.x)) return std::nullopt;
  Tensor y = given.y_of(call);
  if (y.numel() == 0 || run_norm<Args>(call, given, eps, y, nullptr)) return y;
  return std::nullopt;
}

using WithRstd = std::tuple<Tensor, Tensor>;

template <class Args>
std::optional<WithRstd> norm_with_rstd(const Call& call, NormOperands given, double eps) {
  given.check(call.op);
  if (!has_kernel(call, given.x)) return std::nullopt;
  Tensor y = given.empty_y(), rstd = given.empty_rstd();
  if (y.numel() == 0) {
    if (rstd.numel() > 0) check_named_of_nothing<Args>(call, y);
    torch::stable::zero_(rstd);  // of rows without columns
    return WithRstd{y, rstd};
  }
  if (run_norm<Args>(call, given, eps, y, &rstd)) return WithRstd{y, rstd};
  return std::nullopt;
}

}  // namespace warpsmith
