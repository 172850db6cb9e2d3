// RMS norm backward from the output: the binding.
#include "norm/rms_norm/backward_from_output/rms_norm_backward_from_output.h"

#include "norm/backward/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "rms_norm_backward_from_output";
const Ladder<RmsNormBackwardFromOutputArgs> ladder{"rms_norm/backward_from_output"};

std::optional<std::tuple<Tensor, Tensor>> run(const Call& call, const Tensor& grad, const Tensor& y,
                                              std::optional<Tensor> weight, const Tensor& rstd, double eps) {
  const NormBackwardCall given{.grad = grad, .x = y, .weight = weight, .rstd = rstd, .eps = eps};
  check_norm_backward(call.op, "y", given);
  return plain_gradients</*bias=*/false>(norm_backward<RmsNormBackwardFromOutputArgs>(call, given));
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
