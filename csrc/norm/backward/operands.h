// What the bindings of the norms' gradients share: checks, gradients and workspace, the choice of the rung.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "host/named_of_nothing.h"
#include "host/serve.h"
#include "norm/backward/args.h"
#include "row/operands.h"

namespace warpsmith {

// What an operator is given, and what it returns. Hidden, as PyTorch's Tensor is.
struct [[gnu::visibility("hidden")]] NormBackwardCall {
  const Tensor& grad;
  const Tensor& x;                 // the norm's input, or the output it is recomputed from
  std::optional<Tensor> weight{};  // of which gradients are wanted where it is there
  std::optional<Tensor> bias{};
  std::optional<Tensor> grad_x{}, rstd{}, row_scale{};
  double eps;
  bool reads_bias = false;     // and not only its gradient
  bool zero_centered = false;  // the weight
  bool separate = false;       // the gradient of the branch is wanted beside that of x
  bool layer = false;          // of a ladder that serves both norms
  Dropout dropout{};
};

struct [[gnu::visibility("hidden")]] NormGradients {
  Tensor dx, branch_dx, dw, db;  // empty where there is none of its own
};

// Arguments of a norm's gradient. x_name is what messages call x.
inline void check_norm_backward(std::string_view op, std::string_view x_name, const NormBackwardCall& call) {
  const Tensor& x = call.x;
  check_rows(op, x, x_name);
  check_like(op, "grad", call.grad, x, x_name);
  if (call.weight) check_weight(op, *call.weight, x, "weight", x_name);
  if (call.bias) check_bias(op, *call.bias, call.weight, x, x_name);
  if (!call.rstd) return;

  const Tensor& rstd = *call.rstd;
  check_device_like(op, "rstd", rstd, x, x_name);
  const ScalarType wide = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  if (rstd.scalar_type() != wide) {
    fail(op, "expected rstd to have dtype ", dtype_name(wide), ", got ", dtype_name(rstd.scalar_type()));
  }
  const Sizes sizes = x.sizes(), rows(sizes.data(), sizes.size() - 1), found = rstd.sizes();
  if (found.size() != rows.size() || !std::equal(rows.begin(), rows.end(), found.begin())) {
    fail(op, "expected rstd to have shape ", shape_text(rows), ", that of the rows of ", x_name, ", got ",
         shape_text(found));
  }
}

// Of a residual norm's: `x` is h, in the dtype of grad or in f32.
inline void check_residual_backward(std::string_view op, const NormBackwardCall& call) {
  const Tensor &grad = call.grad, &h = call.x;
  check_rows(op, grad, "grad");
  check_device_like(op, "h", h, grad, "grad");
  const Sizes sizes = grad.sizes(), given = h.sizes();
  if (given.size() != sizes.size() || !std::equal(sizes.begin(), sizes.end(), given.begin())) {
    fail(op, "expected h to have shape ", shape_text(sizes), " like grad, got ", shape_text(given));
  }
  if (h.scalar_type() != grad.scalar_type() && h.scalar_type() != ScalarType::Float) {
    fail(op, "expected h to have dtype ", dtype_name(grad.scalar_type()),
         grad.scalar_type() == ScalarType::Float ? "" : " or torch.float32", ", got ", dtype_name(h.scalar_type()));
  }
  if (call.grad_x) check_like(op, "grad_h", *call.grad_x, h, "h");
  if (call.weight) check_weight(op, *call.weight, grad);
  if (call.bias) check_bias(op, *call.bias, call.weight, grad);
}

// The gradients, by the rung that serves the call; nothing where none does.
template <class Args>
std::optional<NormGradients> norm_backward(const Call& call, const NormBackwardCall& given) {
  const Tensor &x = given.x, &grad = given.grad;
  if (!has_kernel(call, grad)) return std::nullopt;
  const auto empty = [&](int64_t size, ScalarType type) { return empty_contiguous(grad, Sizes(&size, 1), type); };
  const auto empty_like = [&](const std::optional<Tensor>& parameter) {
    return empty(parameter ? parameter->size(0) : 0, parameter ? parameter->scalar_type() : grad.scalar_type());
  };
  NormGradients out{
      .dx = empty_contiguous(x, x.sizes(), x.scalar_type()),
      .branch_dx =
          given.separate ? empty_contiguous(grad, grad.sizes(), grad.scalar_type()) : empty(0, grad.scalar_type()),
      .dw = empty_like(given.weight),
      .db = empty_like(given.bias),
  };
  if (x.numel() == 0) {
    if (out.dw.numel() > 0 || out.db.numel() > 0) check_named_of_nothing<Args>(call, grad);
    for (Tensor* sum : {&out.dw, &out.db}) {
      if (sum->numel() > 0) torch::stable::zero_(*sum);
    }
    return out;
  }

  const DeviceScope scope(grad.get_device_index());
  Tensor dense_grad = grad, dense_x = x;
  std::optional<Tensor> grad_x = given.grad_x;
  const RowShape grad_shape = as_rows(dense_grad), shape = as_rows(dense_x);
  const int64_t grad_x_stride = grad_x ? as_rows(*grad_x).stride : shape.cols;
  const std::optional<Tensor> weight = dense(given.weight), rstd = dense(given.rstd),
                              row_scale = dense(given.row_scale);
  const std::optional<Tensor> bias = given.reads_bias ? dense(given.bias) : std::nullopt;
  const std::optional<Tensor>& parameter = given.weight ? given.weight : given.bias;

  // workspace: partial_dw, partial_db, stats
  const int64_t partials = partials_for(shape.rows, shape.cols, device_info(grad.get_device_index()).sm_count);
  const int64_t sums = partials * shape.cols;
  const bool stats = given.weight && !given.rstd;
  const int64_t floats = (given.weight ? sums : 0) + (given.bias ? sums : 0) + (stats ? 2 * shape.rows : 0);
  std::optional<Tensor> workspace;
  if (floats > 0) workspace = empty(floats, ScalarType::Float);
  float* free = workspace ? static_cast<float*>(workspace->data_ptr()) : nullptr;
  const auto take = [&](bool wanted, int64_t count) {
    float* taken = wanted ? free : nullptr;
    if (wanted) free += count;
    return taken;
  };
  float* partial_dw = take(given.weight.has_value(), sums);
  float* partial_db = take(given.bias.has_value(), sums);

  const auto data = [](const std::optional<Tensor>& tensor) { return tensor ? tensor->data_ptr() : nullptr; };
  const Dtype grad_dtype = *kernel_dtype(grad.scalar_type());
  Args args;
  static_cast<NormBackwardArgs&>(args) = {
      .grad = dense_grad.data_ptr(),
      .x = dense_x.data_ptr(),
      .grad_x = data(grad_x),
      .weight = data(weight),
      .bias = data(bias),
      .rstd = static_cast<const float*>(data(rstd)),
      .row_scale = static_cast<const float*>(data(row_scale)),
      .dx = out.dx.data_ptr(),
      .branch_dx = given.separate ? out.branch_dx.data_ptr() : nullptr,
      .dw = given.weight ? out.dw.data_ptr() : nullptr,
      .db = given.bias ? out.db.data_ptr() : nullptr,
      .partial_dw = partial_dw,
      .partial_db = partial_db,
      .stats = take(stats, 2 * shape.rows),
      .rows = shape.rows,
      .cols = shape.cols,
      .grad_stride = grad_shape.stride,
      .x_stride = shape.stride,
      .grad_x_stride = grad_x_stride,
      .most_partials = partials,
      .eps = static_cast<float>(given.eps),
      .weight_offset = given.weight && given.zero_centered ? 1.0f : 0.0f,
      .layer = given.layer,
      .grad_dtype = grad_dtype,
      .dtype = *kernel_dtype(x.scalar_type()),
      .weight_dtype = parameter ? *kernel_dtype(parameter->scalar_type()) : grad_dtype,
      .dropout = given.dropout,
  };
  return serve(call, args, grad) ? std::optional(out) : std::nullopt;
}

// The gradients that an operator without a residual returns: dx and dw, and with `bias` db.
template <bool bias>
auto plain_gradients(const std::optional<NormGradients>& found) {
  using Result = std::conditional_t<bias, std::tuple<Tensor, Tensor, Tensor>, std::tuple<Tensor, Tensor>>;
  if (!found) return std::optional<Result>();
  if constexpr (bias) {
    return std::optional<Result>({found->dx, found->dw, found->db});
  } else {
    return std::optional<Result>({found->dx, found->dw});
  }
}

// With a residual: dh, dx and dw, and with `bias` db.
template <bool bias>
auto residual_gradients(const std::optional<NormGradients>& found) {
  using Result =
      std::conditional_t<bias, std::tuple<Tensor, Tensor, Tensor, Tensor>, std::tuple<Tensor, Tensor, Tensor>>;
  if (!found) return std::optional<Result>();
  if constexpr (bias) {
    return std::optional<Result>({found->dx, found->branch_dx, found->dw, found->db});
  } else {
    return std::optional<Result>({found->dx, found->branch_dx, found->dw});
  }
}

}  // namespace warpsmith
