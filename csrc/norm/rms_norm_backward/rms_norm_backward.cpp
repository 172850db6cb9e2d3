// RMS norm backward: checks, allocation of gradients and workspace, the choice of the rung.
#include "norm/rms_norm_backward/rms_norm_backward.h"

#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "host/registry.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "rms_norm_backward";
const Ladder<RmsNormBackwardArgs> ladder{kOp};

using Gradients = std::tuple<Tensor, Tensor>;

Tensor empty_vector(const Tensor& like, int64_t size, ScalarType type) {
  return empty_contiguous(like, Sizes(&size, 1), type);
}

Gradients fall_back(const Tensor& grad, const Tensor& x, const std::optional<Tensor>& weight, double eps) {
  return call_fallback<Gradients>("warpsmith::rms_norm_backward", grad, x, weight, eps);
}

Gradients run(const Tensor& grad, const Tensor& x, const std::optional<Tensor>& weight, double eps,
              const std::string* rung) {
  check_rows(kOp, x);
  check_same_device(kOp, "grad", grad, x);
  check_same_dtype(kOp, "grad", grad, x);
  check_same_shape(kOp, "grad", grad, x);
  if (weight) check_weight(kOp, *weight, x);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return fall_back(grad, x, weight, eps);
  }
  Tensor dx = empty_contiguous(x, x.sizes(), x.scalar_type());
  Tensor dw = weight ? empty_vector(x, weight->size(0), weight->scalar_type()) : empty_vector(x, 0, x.scalar_type());
  if (x.numel() == 0) {
    if (dw.numel() > 0) torch::stable::zero_(dw);
    return {dx, dw};
  }

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  Tensor dense_grad = grad, dense_x = x;
  const RowShape grad_shape = as_rows(dense_grad), shape = as_rows(dense_x);
  std::optional<Tensor> scale = weight;
  if (scale && !scale->is_contiguous()) scale = torch::stable::contiguous(*scale);
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  const int64_t partials = partials_for(shape.rows, shape.cols, info.sm_count);
  std::optional<Tensor> workspace;  // partial, then rstd
  if (weight) workspace = empty_vector(x, partials * shape.cols + shape.rows, ScalarType::Float);
  float* partial = workspace ? static_cast<float*>(workspace->data_ptr()) : nullptr;

  const RmsNormBackwardArgs args{
      .grad = dense_grad.data_ptr(),
      .x = dense_x.data_ptr(),
      .weight = scale ? scale->data_ptr() : nullptr,
      .dx = dx.data_ptr(),
      .dw = weight ? dw.data_ptr() : nullptr,
      .partial = partial,
      .rstd = partial == nullptr ? nullptr : partial + partials * shape.cols,
      .rows = shape.rows,
      .cols = shape.cols,
      .grad_stride = grad_shape.stride,
      .x_stride = shape.stride,
      .most_partials = partials,
      .eps = static_cast<float>(eps),
      .dtype = dtype,
      .weight_dtype = scale ? *kernel_dtype(scale->scalar_type()) : dtype,
  };
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<RmsNormBackwardArgs>::run_named(kOp, *rung, args, info.sm, stream);
  } else {
    const Rung<RmsNormBackwardArgs>* best = Ladder<RmsNormBackwardArgs>::choose(args, info.sm);
    if (best == nullptr) return fall_back(grad, x, weight, eps);
    Ladder<RmsNormBackwardArgs>::run(*best, args, stream);
  }
  return {dx, dw};
}

Gradients rms_norm_backward(const Tensor& grad, const Tensor& x, std::optional<Tensor> weight, double eps) {
  return run(grad, x, weight, eps, nullptr);
}

Gradients rms_norm_backward_rung(const Tensor& grad, const Tensor& x, std::optional<Tensor> weight, double eps,
                                 std::string rung, std::string) {
  return run(grad, x, weight, eps, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));
  m.impl("rms_norm_backward.rung", TORCH_BOX(&rms_norm_backward_rung));
}

}  // namespace
}  // namespace warpsmith
