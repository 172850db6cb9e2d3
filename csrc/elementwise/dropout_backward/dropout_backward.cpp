// dropout_backward: checks, allocation, the choice of the rung.
#include "elementwise/dropout_backward/dropout_backward.h"

#include "device/philox.h"
#include "host/checks.h"
#include "host/ladder.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "dropout_backward";
const Ladder<DropoutBackwardArgs> ladder{kOp};

void check(const Tensor& grad, const Tensor& mask, double p) {
  check_floating(kOp, "grad", grad);
  check_device_like(kOp, "mask", mask, grad, "grad");
  if (mask.scalar_type() != ScalarType::Int) {
    fail(kOp, "expected mask to have dtype torch.int32, got ", dtype_name(mask.scalar_type()));
  }
  const int64_t words = mask_words(grad.numel());
  if (mask.dim() != 1 || mask.size(0) != words) {
    fail(kOp, "expected mask to have shape (", std::to_string(words), ",), a bit for each element of grad, got ",
         shape_text(mask.sizes()));
  }
  check_share(kOp, "p", p);
}

Tensor run(const Tensor& grad, const Tensor& mask, double p, const std::string* rung) {
  check(grad, mask, p);
  const auto fall_back = [&] { return call_fallback<Tensor>("warpsmith::dropout_backward", grad, mask, p); };
  if (!has_float_kernel(grad)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(grad.scalar_type()));
    return fall_back();
  }
  Tensor dx = empty_contiguous(grad, grad.sizes(), grad.scalar_type());
  if (dx.numel() == 0) return dx;

  const int device = grad.get_device_index();
  const DeviceScope scope(device);
  const Tensor dense_grad = *dense(grad), dense_mask = *dense(mask);
  const DropoutBackwardArgs args{
      .grad = dense_grad.data_ptr(),
      .mask = static_cast<const uint32_t*>(dense_mask.data_ptr()),
      .dx = dx.data_ptr(),
      .n = dx.numel(),
      .scale = Dropout(p, /*seed=*/0, /*offset=*/0).scale,
      .dtype = *kernel_dtype(grad.scalar_type()),
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<DropoutBackwardArgs>::run_named(kOp, *rung, args, sm, stream);
  } else if (const auto* best = Ladder<DropoutBackwardArgs>::choose(args, sm)) {
    Ladder<DropoutBackwardArgs>::run(*best, args, stream);
  } else {
    return fall_back();
  }
  return dx;
}

Tensor dropout_backward(const Tensor& grad, const Tensor& mask, double p) { return run(grad, mask, p, nullptr); }

Tensor dropout_backward_rung(const Tensor& grad, const Tensor& mask, double p, std::string rung, std::string) {
  return run(grad, mask, p, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("dropout_backward", TORCH_BOX(&dropout_backward));
  m.impl("dropout_backward.rung", TORCH_BOX(&dropout_backward_rung));
}

}  // namespace
}  // namespace warpsmith
