// Backward of the softmax of attention scores: checks, allocation, the choice of the rung.
#include "softmax/scaled_masked_softmax_backward/scaled_masked_softmax_backward.h"

#include <algorithm>

#include "host/ladder.h"
#include "softmax/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "scaled_masked_softmax_backward";
const Ladder<ScaledMaskedSoftmaxBackwardArgs> ladder{kOp};

void check_like_y(const Tensor& grad, const Tensor& y) {
  if (grad.is_cuda() != y.is_cuda() || grad.get_device_index() != y.get_device_index()) {
    fail(kOp, "expected grad to be on ", device_text(y), " like y, got ", device_text(grad));
  }
  if (grad.scalar_type() != y.scalar_type()) {
    fail(kOp, "expected grad to have dtype ", dtype_name(y.scalar_type()), " like y, got ",
         dtype_name(grad.scalar_type()));
  }
  const Sizes a = grad.sizes(), b = y.sizes();
  if (a.size() != b.size() || !std::equal(a.begin(), a.end(), b.begin())) {
    fail(kOp, "expected grad to have shape ", shape_text(b), " like y, got ", shape_text(a));
  }
}

Tensor run(const Tensor& grad, const Tensor& y, double scale, bool causal, const std::string* rung) {
  const auto fall_back = [&] {
    return call_fallback<Tensor>("warpsmith::scaled_masked_softmax_backward", grad, y, scale, causal);
  };
  check_floating(kOp, "y", y);
  if (y.dim() == 0) fail(kOp, "expected at least 1 dimension in y, got shape ()");
  check_like_y(grad, y);
  if (!has_float_kernel(y)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(y.scalar_type()));
    return fall_back();
  }
  Tensor dx = empty_contiguous(y, y.sizes(), y.scalar_type());
  if (dx.numel() == 0) return dx;

  const int device = y.get_device_index();
  const DeviceScope scope(device);
  Tensor dense_grad = grad, dense_y = y;
  const RowShape grad_shape = as_rows(dense_grad), shape = as_rows(dense_y);
  const ScaledMaskedSoftmaxBackwardArgs args{
      .grad = dense_grad.data_ptr(),
      .y = dense_y.data_ptr(),
      .dx = dx.data_ptr(),
      .rows = shape.rows,
      .cols = shape.cols,
      .grad_stride = grad_shape.stride,
      .y_stride = shape.stride,
      .queries = queries_of(y),
      .scale = static_cast<float>(scale),
      .causal = causal,
      .dtype = *kernel_dtype(y.scalar_type()),
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<ScaledMaskedSoftmaxBackwardArgs>::run_named(kOp, *rung, args, sm, stream);
  } else {
    const Rung<ScaledMaskedSoftmaxBackwardArgs>* best = Ladder<ScaledMaskedSoftmaxBackwardArgs>::choose(args, sm);
    if (best == nullptr) return fall_back();
    Ladder<ScaledMaskedSoftmaxBackwardArgs>::run(*best, args, stream);
  }
  return dx;
}

Tensor scaled_masked_softmax_backward(const Tensor& grad, const Tensor& y, double scale, bool causal) {
  return run(grad, y, scale, causal, nullptr);
}

Tensor scaled_masked_softmax_backward_rung(const Tensor& grad, const Tensor& y, double scale, bool causal,
                                           std::string rung, std::string) {
  return run(grad, y, scale, causal, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("scaled_masked_softmax_backward", TORCH_BOX(&scaled_masked_softmax_backward));
  m.impl("scaled_masked_softmax_backward.rung", TORCH_BOX(&scaled_masked_softmax_backward_rung));
}

}  // namespace
}  // namespace warpsmith
