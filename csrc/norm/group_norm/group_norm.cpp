// Group norm: checks, allocation, the choice of the rung.
#include "norm/group_norm/group_norm.h"

#include "host/ladder.h"
#include "norm/group_operands.h"
#include "norm/group_statistics.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "group_norm";
const Ladder<GroupNormArgs> ladder{kOp};

// The rungs of several kernels pass statistics from one to the next through memory.
std::optional<Tensor> workspace_for(std::string_view rung, const GroupNormArgs& args, const Tensor& like) {
  if (!rung.ends_with("split")) return std::nullopt;
  const int64_t floats = statistics_floats(args.shape, pieces_of(args.shape, args.dtype));
  return empty_contiguous(like, Sizes(&floats, 1), ScalarType::Float);
}

Tensor run(const Tensor& x, int64_t groups, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
           double eps, const std::string& activation, const std::string* rung) {
  check_group_input(kOp, x, groups);
  if (weight) check_channel_vector(kOp, "weight", *weight, x);
  if (bias) check_channel_vector(kOp, "bias", *bias, x);
  const GroupActivation function = group_activation(kOp, activation);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>("warpsmith::group_norm", x, groups, weight, bias, eps, activation);
  }
  if (x.numel() == 0) return empty_contiguous(x, x.sizes(), x.scalar_type());

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const GroupShape shape = group_shape(x, groups);
  const std::vector<int64_t> strides = group_strides(x.sizes(), shape.channels_last);
  Tensor y = empty_strided(x, x.sizes(), Sizes(strides.data(), strides.size()), x.scalar_type());
  const Tensor input = with_strides(x, strides);
  std::optional<Tensor> scale = weight, shift = bias;
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  GroupNormArgs args{
      .x = input.data_ptr(),
      .weight = channel_vector(scale, dtype),
      .bias = channel_vector(shift, dtype),
      .y = y.data_ptr(),
      .workspace = nullptr,
      .shape = shape,
      .eps = static_cast<float>(eps),
      .activation = function,
      .dtype = dtype,
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  const Rung<GroupNormArgs>* best = rung == nullptr ? Ladder<GroupNormArgs>::choose(args, sm) : nullptr;
  if (rung == nullptr && best == nullptr) {
    return call_fallback<Tensor>("warpsmith::group_norm", x, groups, weight, bias, eps, activation);
  }
  const std::optional<Tensor> workspace = workspace_for(rung != nullptr ? *rung : best->name, args, x);
  if (workspace) args.workspace = static_cast<float*>(workspace->data_ptr());
  if (rung != nullptr) {
    Ladder<GroupNormArgs>::run_named(kOp, *rung, args, sm, stream);
  } else {
    Ladder<GroupNormArgs>::run(*best, args, stream);
  }
  return y;
}

Tensor group_norm(const Tensor& x, int64_t groups, std::optional<Tensor> weight, std::optional<Tensor> bias, double eps,
                  std::string activation) {
  return run(x, groups, weight, bias, eps, activation, nullptr);
}

Tensor group_norm_rung(const Tensor& x, int64_t groups, std::optional<Tensor> weight, std::optional<Tensor> bias,
                       double eps, std::string activation, std::string rung, std::string) {
  return run(x, groups, weight, bias, eps, activation, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("group_norm", TORCH_BOX(&group_norm));
  m.impl("group_norm.rung", TORCH_BOX(&group_norm_rung));
}

}  // namespace
}  // namespace warpsmith
