// Backward of the softmax of attention scores: checks, allocation, the choice of the rung.
#include "softmax/scaled_masked_softmax/backward/scaled_masked_softmax_backward.h"

#include "host/serve.h"
#include "softmax/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "scaled_masked_softmax_backward";
const Ladder<ScaledMaskedSoftmaxBackwardArgs> ladder{"scaled_masked_softmax/backward"};

std::optional<Tensor> run(const Call& call, const Tensor& grad, const Tensor& y, double scale, bool causal) {
  check_floating(kOp, "y", y);
  if (y.dim() == 0) fail(kOp, "expected at least 1 dimension in y, got shape ()");
  check_like(kOp, "grad", grad, y, "y");
  if (!has_kernel(call, y)) return std::nullopt;
  Tensor dx = empty_contiguous(y, y.sizes(), y.scalar_type());
  if (dx.numel() == 0) return dx;

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
  return serve(call, args, dx) ? std::optional(dx) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
