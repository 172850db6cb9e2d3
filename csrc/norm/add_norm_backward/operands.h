// What the bindings of the residual norms' gradients share: checks, allocation, the choice of the rung.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "host/ladder.h"
#include "norm/add_norm/operands.h"
#include "norm/add_norm_backward/add_norm_backward.h"
#include "norm/backward.h"

namespace warpsmith {

using Gradients = std::array<Tensor, 4>;  // dh, dx, dw, db; empty where there is none of its own

inline bool same_shape(const Tensor& a, const Tensor& b) {
  const Sizes x = a.sizes(), y = b.sizes();
  return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin());
}

// Device and shape of grad; a dtype that a pair of x and residual may have.
inline void check_h(std::string_view op, const Tensor& h, const Tensor& grad) {
  if (h.is_cuda() != grad.is_cuda() || h.get_device_index() != grad.get_device_index()) {
    fail(op, "expected h to be on ", device_text(grad), " like grad, got ", device_text(h));
  }
  if (!same_shape(h, grad)) {
    fail(op, "expected h to have shape ", shape_text(grad.sizes()), " like grad, got ", shape_text(h.sizes()));
  }
  if (h.scalar_type() == grad.scalar_type() || h.scalar_type() == ScalarType::Float) return;
  fail(op, "expected h to have dtype ", dtype_name(grad.scalar_type()),
       grad.scalar_type() == ScalarType::Float ? "" : " or torch.float32", ", got ", dtype_name(h.scalar_type()));
}

// Device, shape and dtype of h.
inline void check_grad_h(std::string_view op, const Tensor& grad_h, const Tensor& h) {
  if (grad_h.is_cuda() != h.is_cuda() || grad_h.get_device_index() != h.get_device_index()) {
    fail(op, "expected grad_h to be on ", device_text(h), " like h, got ", device_text(grad_h));
  }
  if (!same_shape(grad_h, h)) {
    fail(op, "expected grad_h to have shape ", shape_text(h.sizes()), " like h, got ", shape_text(grad_h.sizes()));
  }
  if (grad_h.scalar_type() == h.scalar_type()) return;
  fail(op, "expected grad_h to have dtype ", dtype_name(h.scalar_type()), " like h, got ",
       dtype_name(grad_h.scalar_type()));
}

inline void check_add_norm_backward(std::string_view op, const Tensor& grad, const OptionalTensor& grad_h,
                                    const Tensor& h, const OptionalTensor& weight, const OptionalTensor& bias) {
  check_floating(op, "grad", grad);
  if (grad.dim() == 0) fail(op, "expected at least 1 dimension in grad, got shape ()");
  check_h(op, h, grad);
  if (grad_h) check_grad_h(op, *grad_h, h);
  if (weight) check_weight(op, *weight, grad);
  if (bias) check_bias(op, *bias, weight, grad);
}

// A gradient like `of`, or an empty one.
inline Tensor empty_gradient(const Tensor& grad, const OptionalTensor& of) {
  const int64_t size = of ? of->size(0) : 0;
  return empty_contiguous(grad, Sizes(&size, 1), of ? of->scalar_type() : grad.scalar_type());
}

// Runs the named rung, or the best one; nothing where no kernel takes the call. extend() makes the ladder's arguments of
// those that all ladders share.
template <class Args, class Extend>
std::optional<Gradients> run_add_norm_backward(const char* op, Tensor grad, OptionalTensor grad_h, Tensor h,
                                               OptionalTensor weight, const OptionalTensor& bias, double eps,
                                               bool zero_centered, bool layer, bool separate_x, const std::string* rung,
                                               Extend&& extend) {
  check_add_norm_backward(op, grad, grad_h, h, weight, bias);
  if (!has_float_kernel(grad)) {
    if (rung != nullptr) fail(op, "no rung takes ", dtype_name(grad.scalar_type()));
    return std::nullopt;
  }
  constexpr int64_t kNone = 0;
  Tensor dh = empty_contiguous(h, h.sizes(), h.scalar_type());
  Tensor dx = empty_contiguous(grad, separate_x ? grad.sizes() : Sizes(&kNone, 1), grad.scalar_type());
  Tensor dw = empty_gradient(grad, weight), db = empty_gradient(grad, bias);
  if (grad.numel() == 0) {
    if (dw.numel() > 0) torch::stable::zero_(dw);
    if (db.numel() > 0) torch::stable::zero_(db);
    return Gradients{dh, dx, dw, db};
  }

  const int device = grad.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  const RowShape shape = as_rows(grad);
  const int64_t h_stride = as_rows(h).stride;
  const int64_t grad_h_stride = grad_h ? as_rows(*grad_h).stride : shape.cols;
  make_contiguous(weight);
  const int64_t partials = partials_for(shape.rows, shape.cols, info.sm_count), sums = partials * shape.cols;
  OptionalTensor workspace;  // partial dw, partial db, statistics
  if (weight || bias) {
    const int64_t size = (weight ? sums : 0) + (bias ? sums : 0) + 2 * shape.rows;
    workspace = empty_contiguous(grad, Sizes(&size, 1), ScalarType::Float);
  }
  float* next = workspace ? static_cast<float*>(workspace->data_ptr()) : nullptr;
  const auto take = [&](bool wanted, int64_t size) {
    float* const taken = wanted ? next : nullptr;
    if (wanted) next += size;
    return taken;
  };
  const OptionalTensor& affine = weight ? weight : bias;
  AddNormBackwardArgs args{
      .grad = grad.data_ptr(),
      .grad_h = grad_h ? grad_h->data_ptr() : nullptr,
      .h = h.data_ptr(),
      .weight = weight ? weight->data_ptr() : nullptr,
      .dh = dh.data_ptr(),
      .dx = separate_x ? dx.data_ptr() : nullptr,
      .dw = weight ? dw.data_ptr() : nullptr,
      .db = bias ? db.data_ptr() : nullptr,
      .partial_dw = take(weight.has_value(), sums),
      .partial_db = take(bias.has_value(), sums),
      .statistics = take(workspace.has_value(), 2 * shape.rows),
      .rows = shape.rows,
      .cols = shape.cols,
      .grad_stride = shape.stride,
      .grad_h_stride = grad_h_stride,
      .h_stride = h_stride,
      .most_partials = partials,
      .eps = static_cast<float>(eps),
      .weight_offset = weight && zero_centered ? 1.0f : 0.0f,
      .layer = layer,
      .dtype = *kernel_dtype(grad.scalar_type()),
      .h_dtype = *kernel_dtype(h.scalar_type()),
      .weight_dtype = *kernel_dtype(affine ? affine->scalar_type() : grad.scalar_type()),
  };
  const Args extended = extend(args);
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<Args>::run_named(op, *rung, extended, info.sm, stream);
  } else {
    const Rung<Args>* best = Ladder<Args>::choose(extended, info.sm);
    if (best == nullptr) return std::nullopt;
    Ladder<Args>::run(*best, extended, stream);
  }
  return Gradients{dh, dx, dw, db};
}

}  // namespace warpsmith
