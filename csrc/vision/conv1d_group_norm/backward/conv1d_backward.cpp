// conv1d_backward: checks, allocation of gradients and workspace, the choice of the rung.
#include "vision/conv1d_group_norm/backward/conv1d_backward.h"

#include <optional>
#include <tuple>

#include "host/serve.h"
#include "vision/conv1d_group_norm/check_conv1d.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "conv1d_backward";
const Ladder<Conv1dBackwardArgs> ladder{"conv1d_group_norm/backward"};

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // dx, dweight, dbias

void check_gradient(const Tensor& grad, const Tensor& x, const Tensor& weight) {
  check_device_like(kOp, "grad", grad, x, "x");
  if (grad.scalar_type() != x.scalar_type()) {
    fail(kOp, "expected grad to have dtype ", dtype_name(x.scalar_type()), " like x, got ",
         dtype_name(grad.scalar_type()));
  }
  if (grad.dim() != 3 || grad.size(0) != x.size(0) || grad.size(1) != weight.size(0) || grad.size(2) != x.size(2)) {
    const int64_t wanted[] = {x.size(0), weight.size(0), x.size(2)};
    fail(kOp, "expected grad to have shape ", shape_text(Sizes(wanted, 3)), ", got ", shape_text(grad.sizes()));
  }
}

std::optional<Gradients> run(const Call& call, const Tensor& grad, const Tensor& x, const Tensor& weight) {
  check_conv1d(kOp, x, weight);
  check_gradient(grad, x, weight);
  if (!has_kernel(call, x)) return std::nullopt;
  const int64_t channels = weight.size(0);
  Tensor dx = empty_contiguous(x, x.sizes(), x.scalar_type());
  Tensor dweight = empty_contiguous(x, weight.sizes(), x.scalar_type());
  Tensor dbias = empty_contiguous(x, Sizes(&channels, 1), x.scalar_type());
  if (x.numel() == 0) {
    torch::stable::zero_(dweight);
    torch::stable::zero_(dbias);
    return Gradients{dx, dweight, dbias};
  }

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const Tensor dense_grad = dense(grad), dense_x = dense(x), dense_weight = dense(weight);
  Conv1dBackwardArgs args{
      .shape = conv1d_shape(x, weight),
      .grad = dense_grad.data_ptr(),
      .x = dense_x.data_ptr(),
      .weight = dense_weight.data_ptr(),
      .dx = dx.data_ptr(),
      .dweight = dweight.data_ptr(),
      .dbias = dbias.data_ptr(),
      .workspace = nullptr,
      .dtype = *kernel_dtype(x.scalar_type()),
      .sm_count = device_info(device).sm_count,
  };
  const Rung<Conv1dBackwardArgs>* rung = pick(call, args, device_info(device).sm);
  if (rung == nullptr) return std::nullopt;
  const int64_t bytes = workspace_bytes(rung->name, args);
  const Tensor workspace = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
  args.workspace = workspace.data_ptr();
  Ladder<Conv1dBackwardArgs>::run(*rung, args, current_stream(device));
  return Gradients{dx, dweight, dbias};
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
