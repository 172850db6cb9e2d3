// RMS norm backward: the binding.
#include "norm/rms_norm/backward/rms_norm_backward.h"

#include "norm/backward/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "rms_norm_backward";
const Ladder<RmsNormBackwardArgs> ladder{"rms_norm/backward"};

std::optional<std::tuple<Tensor, Tensor>> run(const Call& call, const Tensor& grad, const Tensor& x,
                                              std::optional<Tensor> weight, double eps) {
  const NormBackwardCall given{.grad = grad, .x = x, .weight = weight, .eps = eps};
  check_norm_backward(call.op, "x", given);
  return plain_gradients</*bias=*/false>(norm_backward<RmsNormBackwardArgs>(call, given));
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
