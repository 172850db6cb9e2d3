// Binary cross-entropy with logits backward: checks, allocation, the choice of the rung.
#include "loss/bce_with_logits_backward/bce_with_logits_backward.h"

#include <algorithm>

#include "host/ladder.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "bce_with_logits_backward";
const Ladder<BceWithLogitsBackwardArgs> ladder{kOp};

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

Tensor run(const Tensor& x, const Tensor& target, const Tensor& grad, double scale, const std::string* rung) {
  check_floating(kOp, "x", x);
  check_same_device(kOp, "target", target, x);
  check_same_dtype(kOp, "target", target, x);
  check_same_shape(kOp, "target", target, x);
  check_grad(grad, x);
  const auto fall_back = [&] {
    return call_fallback<Tensor>("warpsmith::bce_with_logits_backward", x, target, grad, scale);
  };
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return fall_back();
  }
  Tensor dx = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (dx.numel() == 0) return dx;

  const int device = x.get_device_index();
  const DeviceScope scope(device);
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
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<BceWithLogitsBackwardArgs>::run_named(kOp, *rung, args, sm, stream);
  } else if (const auto* best = Ladder<BceWithLogitsBackwardArgs>::choose(args, sm)) {
    Ladder<BceWithLogitsBackwardArgs>::run(*best, args, stream);
  } else {
    return fall_back();
  }
  return dx;
}

Tensor bce_with_logits_backward(const Tensor& x, const Tensor& target, const Tensor& grad, double scale) {
  return run(x, target, grad, scale, nullptr);
}

Tensor bce_with_logits_backward_rung(const Tensor& x, const Tensor& target, const Tensor& grad, double scale,
                                     std::string rung, std::string) {
  return run(x, target, grad, scale, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("bce_with_logits_backward", TORCH_BOX(&bce_with_logits_backward));
  m.impl("bce_with_logits_backward.rung", TORCH_BOX(&bce_with_logits_backward_rung));
}

}  // namespace
}  // namespace warpsmith
