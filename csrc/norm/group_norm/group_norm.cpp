// Group norm: checks, allocation, the choice of the rung.
#include "norm/group_norm/group_norm.h"

#include "host/into.h"
#include "host/serve.h"
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

std::optional<Tensor> run(const CallInto& call, const Tensor& x, int64_t groups, const std::optional<Tensor>& weight,
                          const std::optional<Tensor>& bias, double eps, const std::string& activation) {
  check_group_input(kOp, x, groups);
  if (weight) check_channel_vector(kOp, "weight", *weight, x);
  if (bias) check_channel_vector(kOp, "bias", *bias, x);
  const GroupActivation function = group_activation(kOp, activation);
  if (!has_kernel(call, x)) return std::nullopt;
  if (x.numel() == 0) return result(call, x, x.sizes(), x.scalar_type());

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const GroupShape shape = group_shape(x, groups);
  const std::vector<int64_t> strides = group_strides(x.sizes(), shape.channels_last);
  Tensor y = result_strided(call, x, x.sizes(), Sizes(strides.data(), strides.size()), x.scalar_type());
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
  const Rung<GroupNormArgs>* rung = pick(call, args, device_info(device).sm);
  if (rung == nullptr) return std::nullopt;
  const std::optional<Tensor> workspace = workspace_for(rung->name, args, x);
  if (workspace) args.workspace = static_cast<float*>(workspace->data_ptr());
  Ladder<GroupNormArgs>::run(*rung, args, current_stream(device));
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
