// Group norm backward: checks, allocation of gradients and workspace, the choice of the rung.
#include "norm/group_norm/backward/group_norm_backward.h"

#include <tuple>

#include "host/named_of_nothing.h"
#include "host/serve.h"
#include "norm/group_operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "group_norm_backward";
const Ladder<GroupNormBackwardArgs> ladder{"group_norm/backward"};

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Tensor empty_vector(const Tensor& like, int64_t size, ScalarType type) {
  return empty_contiguous(like, Sizes(&size, 1), type);
}

// The gradient of a value per channel; empty without one.
Tensor empty_gradient(const std::optional<Tensor>& of, const Tensor& x) {
  return of ? empty_vector(x, of->size(0), of->scalar_type()) : empty_vector(x, 0, x.scalar_type());
}

std::optional<Gradients> run(const Call& call, const Tensor& grad, const Tensor& x, int64_t groups,
                             const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps,
                             const std::string& activation) {
  check_group_input(kOp, x, groups);
  check_same_device(kOp, "grad", grad, x);
  check_same_dtype(kOp, "grad", grad, x);
  check_same_shape(kOp, "grad", grad, x);
  if (weight) check_channel_vector(kOp, "weight", *weight, x);
  if (bias) check_channel_vector(kOp, "bias", *bias, x);
  const GroupActivation function = group_activation(kOp, activation);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor dw = empty_gradient(weight, x), db = empty_gradient(bias, x);
  if (x.numel() == 0) {
    if (dw.numel() > 0 || db.numel() > 0) check_named_of_nothing<GroupNormBackwardArgs>(call, x);
    if (dw.numel() > 0) torch::stable::zero_(dw);
    if (db.numel() > 0) torch::stable::zero_(db);
    return Gradients{empty_contiguous(x, x.sizes(), x.scalar_type()), dw, db};
  }

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const GroupShape shape = group_shape(x, groups);
  const std::vector<int64_t> strides = group_strides(x.sizes(), shape.channels_last);
  Tensor dx = empty_strided(x, x.sizes(), Sizes(strides.data(), strides.size()), x.scalar_type());
  const Tensor dense_x = with_strides(x, strides), dense_grad = with_strides(grad, strides);
  std::optional<Tensor> scale = weight, shift = bias;
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  GroupNormBackwardArgs args{
      .grad = dense_grad.data_ptr(),
      .x = dense_x.data_ptr(),
      .weight = channel_vector(scale, dtype),
      .bias = channel_vector(shift, dtype),
      .dx = dx.data_ptr(),
      .dw = weight ? dw.data_ptr() : nullptr,
      .db = bias ? db.data_ptr() : nullptr,
      .workspace = nullptr,
      .shape = shape,
      .eps = static_cast<float>(eps),
      .activation = function,
      .dtype = dtype,
  };
  const Rung<GroupNormBackwardArgs>* rung = pick(call, args, device_info(device).sm);
  if (rung == nullptr) return std::nullopt;
  const int64_t floats = workspace_floats(rung->name, args);
  const Tensor workspace = empty_vector(x, floats, ScalarType::Float);
  args.workspace = static_cast<float*>(workspace.data_ptr());
  Ladder<GroupNormBackwardArgs>::run(*rung, args, current_stream(device));
  return Gradients{dx, dw, db};
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
