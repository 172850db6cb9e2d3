// What the bindings of the norms' gradients share: checks, gradients and workspace, the choice of the rung.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <string>

#include "host/ladder.h"
#include "norm/backward.h"
#include "row/operands.h"

namespace warpsmith {

// Hidden, as PyTorch's Tensor is.
struct [[gnu::visibility("hidden")]] NormBackwardCall {
  const Tensor& grad;
  const Tensor& x;
  std::string_view x_name;  // how messages call it
  const std::optional<Tensor>&weight, &bias;
  const Tensor* rstd;  // null where the kernels compute it
  double eps;
  bool reads_bias;  // and not only its gradient
};

struct [[gnu::visibility("hidden")]] NormGradients {
  Tensor dx, dw, db;  // dw, db: empty without a weight, a bias
};

namespace norm_backward {

inline Tensor empty_vector(const Tensor& like, int64_t size, ScalarType type) {
  return empty_contiguous(like, Sizes(&size, 1), type);
}

inline Tensor empty_gradient(const std::optional<Tensor>& parameter, const Tensor& x) {
  return parameter ? empty_vector(x, parameter->size(0), parameter->scalar_type())
                   : empty_vector(x, 0, x.scalar_type());
}

inline void check(std::string_view op, const NormBackwardCall& call) {
  const Tensor &x = call.x, &grad = call.grad;
  check_rows(op, x, call.x_name);
  check_device_like(op, "grad", grad, x, call.x_name);
  if (grad.scalar_type() != x.scalar_type()) {
    fail(op, "expected grad to have dtype ", dtype_name(x.scalar_type()), " like ", call.x_name, ", got ",
         dtype_name(grad.scalar_type()));
  }
  const Sizes sizes = x.sizes(), given = grad.sizes();
  if (given.size() != sizes.size() || !std::equal(sizes.begin(), sizes.end(), given.begin())) {
    fail(op, "expected grad to have shape ", shape_text(sizes), " like ", call.x_name, ", got ", shape_text(given));
  }
  if (call.weight) check_weight(op, *call.weight, x, "weight", call.x_name);
  if (call.bias) check_bias(op, *call.bias, call.weight, x, call.x_name);
  if (call.rstd == nullptr) return;

  const Tensor& rstd = *call.rstd;
  check_device_like(op, "rstd", rstd, x, call.x_name);
  const ScalarType wide = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  if (rstd.scalar_type() != wide) {
    fail(op, "expected rstd to have dtype ", dtype_name(wide), ", got ", dtype_name(rstd.scalar_type()));
  }
  const Sizes rows(sizes.data(), sizes.size() - 1), found = rstd.sizes();
  if (found.size() != rows.size() || !std::equal(rows.begin(), rows.end(), found.begin())) {
    fail(op, "expected rstd to have shape ", shape_text(rows), ", that of the rows of ", call.x_name, ", got ",
         shape_text(found));
  }
}

}  // namespace norm_backward

// The gradients, by the rung of that name or by the best; nothing where no rung takes the call.
template <class Args>
std::optional<NormGradients> run_norm_backward(const char* op, const NormBackwardCall& call, const std::string* rung) {
  using namespace norm_backward;
  const Tensor& x = call.x;
  check(op, call);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(op, "no rung takes ", dtype_name(x.scalar_type()));
    return std::nullopt;
  }
  NormGradients out{empty_contiguous(x, x.sizes(), x.scalar_type()), empty_gradient(call.weight, x),
                    empty_gradient(call.bias, x)};
  if (x.numel() == 0) {
    for (Tensor* sum : {&out.dw, &out.db}) {
      if (sum->numel() > 0) torch::stable::zero_(*sum);
    }
    return out;
  }

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  Tensor dense_grad = call.grad, dense_x = x;
  const RowShape grad_shape = as_rows(dense_grad), shape = as_rows(dense_x);
  const std::optional<Tensor> weight = dense(call.weight);
  const std::optional<Tensor> bias = call.reads_bias ? dense(call.bias) : std::nullopt;
  const std::optional<Tensor> rstd = call.rstd != nullptr ? std::optional(dense(*call.rstd)) : std::nullopt;
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  const std::optional<Tensor>& parameter = call.weight ? call.weight : call.bias;

  // partial_dw, partial_db, stats
  const int64_t partials = partials_for(shape.rows, shape.cols, info.sm_count);
  const int64_t sums = partials * shape.cols;
  const bool stats = call.weight && call.rstd == nullptr;
  const int64_t floats = (call.weight ? sums : 0) + (call.bias ? sums : 0) + (stats ? 2 * shape.rows : 0);
  std::optional<Tensor> workspace;
  if (floats > 0) workspace = empty_vector(x, floats, ScalarType::Float);
  float* free = workspace ? static_cast<float*>(workspace->data_ptr()) : nullptr;
  const auto take = [&](bool wanted, int64_t count) {
    float* taken = wanted ? free : nullptr;
    if (wanted) free += count;
    return taken;
  };
  float* partial_dw = take(call.weight.has_value(), sums);
  float* partial_db = take(call.bias.has_value(), sums);

  Args args;
  static_cast<NormBackwardArgs&>(args) = {
      .grad = dense_grad.data_ptr(),
      .x = dense_x.data_ptr(),
      .weight = weight ? weight->data_ptr() : nullptr,
      .bias = bias ? bias->data_ptr() : nullptr,
      .rstd = rstd ? static_cast<const float*>(rstd->data_ptr()) : nullptr,
      .dx = out.dx.data_ptr(),
      .dw = call.weight ? out.dw.data_ptr() : nullptr,
      .db = call.bias ? out.db.data_ptr() : nullptr,
      .partial_dw = partial_dw,
      .partial_db = partial_db,
      .stats = take(stats, 2 * shape.rows),
      .rows = shape.rows,
      .cols = shape.cols,
      .grad_stride = grad_shape.stride,
      .x_stride = shape.stride,
      .most_partials = partials,
      .eps = static_cast<float>(call.eps),
      .dtype = dtype,
      .weight_dtype = parameter ? *kernel_dtype(parameter->scalar_type()) : dtype,
  };
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<Args>::run_named(op, *rung, args, info.sm, stream);
  } else if (const Rung<Args>* best = Ladder<Args>::choose(args, info.sm)) {
    Ladder<Args>::run(*best, args, stream);
  } else {
    return std::nullopt;
  }
  return out;
}

}  // namespace warpsmith
