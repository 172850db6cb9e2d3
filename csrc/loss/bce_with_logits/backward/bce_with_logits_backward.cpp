// Binary cross-entropy with logits backward: checks, allocation, the choice of the rung.
#include "loss/bce_with_logits/backward/bce_with_logits_backward.h"

#include <algorithm>

#include "host/serve.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "bce_with_logits_backward";
const Ladder<BceWithLogitsBackwardArgs> ladder{"bce_with_logits/backward"};

// One number for all elements, or one for each; f32, or f64 beside f64 logits.
void check_grad(const Tensor& grad, const Tensor& x) {
  check_same_device(kOp, "grad", grad, x);
  const ScalarType wanted = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  if (grad.scalar_type() != wanted) {
    fail(kOp, "expected grad to have dtype ", dtype_name(wanted), ", got ", dtype_name(grad.scalar_type()));
  }
  if (grad.dim() == 0) return;
  const Sizes a = grad.sizes(), b = x.sizes();
  if (a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin())) return;
  fail(kOp, "expected grad to have shape ", shape_text(b), " like x, or (), got ", shape_text(a));
}

std::optional<Tensor> run(const Call& call, const Tensor& x, const Tensor& target, const Tensor& grad, double scale) {
  check_floating(kOp, "x", x);
  check_same_device(kOp, "target", target, x);
  check_same_dtype(kOp, "target", target, x);
  check_same_shape(kOp, "target", target, x);
  check_grad(grad, x);
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor dx = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (dx.numel() == 0) return dx;

  const Tensor dense_x = dense(x), dense_target = dense(target), dense_grad = dense(grad);
  const BceWithLogitsBackwardArgs args{
      .x = dense_x.data_ptr(),
      .target = dense_target.data_ptr(),
      .grad = static_cast<const float*>(dense_grad.data_ptr()),
      .dx = dx.data_ptr(),
      .n = x.numel(),
      .scale = static_cast<float>(scale),
      .dtype = *kernel_dtype(x.scalar_type()),
      .shared_grad = grad.dim() == 0,
  };
  return serve(call, args, dx) ? std::optional(dx) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
