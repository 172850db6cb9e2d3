// Gradients of softmax and log_softmax: checks, allocation, the choice of the rung.
#include "softmax/softmax/backward/softmax_backward.h"

#include <optional>

#include "host/serve.h"
#include "row/operands.h"
#include "softmax/slices.h"

namespace warpsmith {
namespace {

const Ladder<SoftmaxBackwardArgs> ladder{"softmax/backward"};

template <bool log>
std::optional<Tensor> run(const Call& call, const Tensor& grad, const Tensor& y, int64_t dim) {
  check_floating(call.op, "y", y);
  check_like(call.op, "grad", grad, y, "y");
  const int64_t along = check_dim(call.op, y, dim);
  if (!has_kernel(call, y)) return std::nullopt;
  Tensor dx = empty_contiguous(y, y.sizes(), y.scalar_type());
  if (dx.numel() == 0) return dx;

  const DeviceScope scope(y.get_device_index());  // which the workspace is cut to
  Tensor given = grad, output = y;
  const Slices of_grad = as_slices(given, along), of_y = as_slices(output, along);
  SoftmaxBackwardArgs args{
      .grad = given.data_ptr(),
      .y = output.data_ptr(),
      .dx = dx.data_ptr(),
      .workspace = nullptr,
      .rows = of_y.outer * of_y.inner,
      .cols = of_y.cols,
      .inner = of_y.inner,
      .grad_stride = of_grad.stride,
      .y_stride = of_y.stride,
      .grad_columns = of_grad.col_stride,
      .y_columns = of_y.col_stride,
      .dtype = *kernel_dtype(y.scalar_type()),
      .log = log,
  };
  std::optional<Tensor> workspace;
  if (const int64_t words = workspace_words(args)) {
    workspace = empty_words(y, words);
    args.workspace = workspace->data_ptr();
  }
  return serve(call, args, dx) ? std::optional(dx) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&run<false>>(m, "softmax_backward");
  bind<&run<true>>(m, "log_softmax_backward");
}

}  // namespace
}  // namespace warpsmith
