// Backward of bias, scale, mask, softmax and dropout: checks, allocation, the choice of the rung.
#include "softmax/scaled_masked_softmax/dropout_backward/bias_scale_mask_softmax_dropout_backward.h"

#include <algorithm>

#include "host/serve.h"
#include "softmax/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "bias_scale_mask_softmax_dropout_backward";
using Args = BiasScaleMaskSoftmaxDropoutBackwardArgs;
const Ladder<Args> ladder{"scaled_masked_softmax/dropout_backward"};

// One f32 value per row of x.
void check_per_row(std::string_view name, const Tensor& tensor, const Tensor& x) {
  check_same_device(kOp, name, tensor, x);
  const ScalarType wanted = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  if (tensor.scalar_type() != wanted) {
    fail(kOp, "expected ", name, " to have dtype ", dtype_name(wanted), ", got ", dtype_name(tensor.scalar_type()));
  }
  const Sizes rows(x.sizes().data(), x.sizes().size() - 1), sizes = tensor.sizes();
  if (sizes.size() == rows.size() && std::equal(sizes.begin(), sizes.end(), rows.begin())) return;
  fail(kOp, "expected ", name, " to have shape ", shape_text(rows), ", that of x without its last dimension, got ",
       shape_text(sizes));
}

std::optional<Tensor> run(const Call& call, const Tensor& grad, const Tensor& x, const std::optional<Tensor>& bias,
                          const std::optional<Tensor>& mask, const Tensor& lse, const std::optional<Tensor>& grad_lse,
                          double scale, bool causal, double p, int64_t seed, int64_t offset) {
  check_rows(kOp, x);
  check_same_device(kOp, "grad", grad, x);
  check_same_dtype(kOp, "grad", grad, x);
  check_same_shape(kOp, "grad", grad, x);
  if (bias) check_bias(kOp, *bias, x);
  if (mask) check_bool_mask(kOp, *mask, x);
  check_per_row("lse", lse, x);
  if (grad_lse) check_per_row("grad_lse", *grad_lse, x);
  check_share(kOp, "p", p);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor dx = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (dx.numel() == 0) return dx;

  Tensor input = x, dense_grad = grad;
  std::optional<Tensor> added = bias, excluded = mask;
  const Tensor dense_lse = dense(lse);
  const std::optional<Tensor> outer = dense(grad_lse);
  const RowShape grad_shape = as_rows(dense_grad);
  const Args args{
      .logits = logit_args(input, added, excluded, scale, causal),
      .grad = dense_grad.data_ptr(),
      .lse = static_cast<const float*>(dense_lse.data_ptr()),
      .grad_lse = outer ? static_cast<const float*>(outer->data_ptr()) : nullptr,
      .dx = dx.data_ptr(),
      .grad_stride = grad_shape.stride,
      .dropout = Dropout(p, seed, offset),
  };
  return serve(call, args, dx) ? std::optional(dx) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
