// dropout_backward: checks, allocation, the choice of the rung.
#include "elementwise/dropout/backward/dropout_backward.h"

#include "device/philox.h"
#include "host/serve.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "dropout_backward";
const Ladder<DropoutBackwardArgs> ladder{"dropout/backward"};

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

std::optional<Tensor> run(const Call& call, const Tensor& grad, const Tensor& mask, double p) {
  check(grad, mask, p);
  if (!has_kernel(call, grad)) return std::nullopt;
  Tensor dx = empty_contiguous(grad, grad.sizes(), grad.scalar_type());
  if (dx.numel() == 0) return dx;

  const Tensor dense_grad = dense(grad), dense_mask = dense(mask);
  const DropoutBackwardArgs args{
      .grad = dense_grad.data_ptr(),
      .mask = static_cast<const uint32_t*>(dense_mask.data_ptr()),
      .dx = dx.data_ptr(),
      .n = dx.numel(),
      .scale = Dropout(p, /*seed=*/0, /*offset=*/0).scale,
      .dtype = *kernel_dtype(grad.scalar_type()),
  };
  return serve(call, args, dx) ? std::optional(dx) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
