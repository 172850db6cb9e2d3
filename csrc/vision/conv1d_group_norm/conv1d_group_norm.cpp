// conv1d_group_norm_forward: checks, allocation, the choice of the rung.
#include "vision/conv1d_group_norm/conv1d_group_norm.h"

#include <optional>
#include <string>
#include <tuple>

#include "host/serve.h"
#include "vision/conv1d_group_norm/check_conv1d.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "conv1d_group_norm_forward";
const Ladder<Conv1dGroupNormArgs> ladder{"conv1d_group_norm"};

using Outputs = std::tuple<Tensor, Tensor>;  // y, h

void check_vector(std::string_view name, const Tensor& vector, const Tensor& x, int64_t channels) {
  check_device_like(kOp, name, vector, x, "x");
  if (vector.scalar_type() != x.scalar_type()) {
    fail(kOp, "expected ", name, " to have dtype ", dtype_name(x.scalar_type()), " like x, got ",
         dtype_name(vector.scalar_type()));
  }
  if (vector.dim() != 1 || vector.size(0) != channels) {
    fail(kOp, "expected ", name, " to have shape (", std::to_string(channels),
         ",), a value for each channel of weight, got ", shape_text(vector.sizes()));
  }
}

Conv1dActivation activation_of(const std::string& name) {
  if (name == "none") return Conv1dActivation::none;
  if (name == "silu") return Conv1dActivation::silu;
  if (name == "mish") return Conv1dActivation::mish;
  fail(kOp, "expected activation to be 'none', 'silu' or 'mish', got '", name, "'");
}

std::optional<Outputs> run(const Call& call, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                           const Tensor& norm_weight, const Tensor& norm_bias, int64_t groups, double eps,
                           std::string activation, bool keep) {
  check_conv1d(kOp, x, weight);
  const Conv1dShape shape = conv1d_shape(x, weight);
  if (bias) check_vector("bias", *bias, x, shape.c_out);
  check_vector("norm_weight", norm_weight, x, shape.c_out);
  check_vector("norm_bias", norm_bias, x, shape.c_out);
  if (groups < 1) fail(kOp, "expected groups to be at least 1, got ", std::to_string(groups));
  if (shape.c_out % groups != 0) {
    fail(kOp, "expected groups to divide the ", std::to_string(shape.c_out), " channels of weight, got ",
         std::to_string(groups));
  }
  const Conv1dActivation function = activation_of(activation);
  if (!has_kernel(call, x)) return std::nullopt;
  const int64_t sizes[] = {shape.n, shape.c_out, shape.length}, none = 0;
  Tensor y = empty_contiguous(x, Sizes(sizes, 3), x.scalar_type());
  Tensor h = empty_contiguous(x, keep ? Sizes(sizes, 3) : Sizes(&none, 1), x.scalar_type());
  if (y.numel() == 0) return Outputs{y, h};

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const Tensor dense_x = dense(x), dense_weight = dense(weight), dense_scale = dense(norm_weight),
               dense_shift = dense(norm_bias);
  const std::optional<Tensor> dense_bias = dense(bias);
  Conv1dGroupNormArgs args{
      .shape = shape,
      .x = dense_x.data_ptr(),
      .weight = dense_weight.data_ptr(),
      .bias = dense_bias ? dense_bias->data_ptr() : nullptr,
      .norm_weight = dense_scale.data_ptr(),
      .norm_bias = dense_shift.data_ptr(),
      .y = y.data_ptr(),
      .h = keep ? h.data_ptr() : nullptr,
      .workspace = nullptr,
      .groups = groups,
      .eps = static_cast<float>(eps),
      .activation = function,
      .dtype = *kernel_dtype(x.scalar_type()),
      .sm_count = device_info(device).sm_count,
  };
  const Rung<Conv1dGroupNormArgs>* rung = pick(call, args, device_info(device).sm);
  if (rung == nullptr) return std::nullopt;
  // a rung that leaves h in memory leaves it where y will be, which is normalised in place
  if (args.h == nullptr && passes_through_memory(rung->name)) args.h = args.y;
  const int64_t bytes = workspace_bytes(rung->name, args);
  const Tensor workspace = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
  args.workspace = workspace.data_ptr();
  Ladder<Conv1dGroupNormArgs>::run(*rung, args, current_stream(device));
  return Outputs{y, h};
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
