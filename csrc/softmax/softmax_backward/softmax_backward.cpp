// Gradients of softmax and log_softmax: checks, allocation, the choice of the rung.
#include "softmax/softmax_backward/softmax_backward.h"

#include <algorithm>
#include <optional>

#include "host/ladder.h"
#include "row/operands.h"
#include "softmax/slices.h"

namespace warpsmith {
namespace {

const Ladder<SoftmaxBackwardArgs> ladder{"softmax_backward"};

// The two operators of the ladder.
struct SoftmaxBackward {
  static constexpr const char *name = "softmax_backward", *full_name = "warpsmith::softmax_backward";
  static constexpr bool log = false;
};

struct LogSoftmaxBackward {
  static constexpr const char *name = "log_softmax_backward", *full_name = "warpsmith::log_softmax_backward";
  static constexpr bool log = true;
};

void check_grad(std::string_view op, const Tensor& grad, const Tensor& y) {
  if (grad.is_cuda() != y.is_cuda() || grad.get_device_index() != y.get_device_index()) {
    fail(op, "expected grad to be on ", device_text(y), " like y, got ", device_text(grad));
  }
  if (grad.scalar_type() != y.scalar_type()) {
    fail(op, "expected grad to have dtype ", dtype_name(y.scalar_type()), " like y, got ",
         dtype_name(grad.scalar_type()));
  }
  const Sizes a = grad.sizes(), b = y.sizes();
  if (a.size() != b.size() || !std::equal(a.begin(), a.end(), b.begin())) {
    fail(op, "expected grad to have shape ", shape_text(b), " like y, got ", shape_text(a));
  }
}

// `rung` null: the ladder's own choice.
template <class Op>
Tensor run(const Tensor& grad, const Tensor& y, int64_t dim, const std::string* rung) {
  check_floating(Op::name, "y", y);
  check_grad(Op::name, grad, y);
  const int64_t along = check_dim(Op::name, y, dim);
  if (!has_float_kernel(y)) {
    if (rung != nullptr) fail(Op::name, "no rung takes ", dtype_name(y.scalar_type()));
    return call_fallback<Tensor>(Op::full_name, grad, y, dim);
  }
  Tensor dx = empty_contiguous(y, y.sizes(), y.scalar_type());
  if (dx.numel() == 0) return dx;

  const int device = y.get_device_index();
  const DeviceScope scope(device);
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
      .log = Op::log,
  };
  std::optional<Tensor> workspace;
  if (const int64_t words = workspace_words(args)) {
    workspace = empty_words(y, words);
    args.workspace = workspace->data_ptr();
  }
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<SoftmaxBackwardArgs>::run_named(Op::name, *rung, args, sm, stream);
  } else {
    const Rung<SoftmaxBackwardArgs>* best = Ladder<SoftmaxBackwardArgs>::choose(args, sm);
    if (best == nullptr) return call_fallback<Tensor>(Op::full_name, grad, y, dim);
    Ladder<SoftmaxBackwardArgs>::run(*best, args, stream);
  }
  return dx;
}

Tensor softmax_backward(const Tensor& grad, const Tensor& y, int64_t dim) {
  return run<SoftmaxBackward>(grad, y, dim, nullptr);
}

Tensor softmax_backward_rung(const Tensor& grad, const Tensor& y, int64_t dim, std::string rung, std::string) {
  return run<SoftmaxBackward>(grad, y, dim, &rung);
}

Tensor log_softmax_backward(const Tensor& grad, const Tensor& y, int64_t dim) {
  return run<LogSoftmaxBackward>(grad, y, dim, nullptr);
}

Tensor log_softmax_backward_rung(const Tensor& grad, const Tensor& y, int64_t dim, std::string rung, std::string) {
  return run<LogSoftmaxBackward>(grad, y, dim, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("softmax_backward", TORCH_BOX(&softmax_backward));
  m.impl("softmax_backward.rung", TORCH_BOX(&softmax_backward_rung));
  m.impl("log_softmax_backward", TORCH_BOX(&log_softmax_backward));
  m.impl("log_softmax_backward.rung", TORCH_BOX(&log_softmax_backward_rung));
}

}  // namespace
}  // namespace warpsmith
