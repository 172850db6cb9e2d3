// RMS norm backward: the binding.
#include "norm/rms_norm_backward/rms_norm_backward.h"

#include <tuple>

#include "norm/backward_operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "rms_norm_backward";
const Ladder<RmsNormBackwardArgs> ladder{kOp};

using Gradients = std::tuple<Tensor, Tensor>;

Gradients run(const Tensor& grad, const Tensor& x, const std::optional<Tensor>& weight, double eps,
              const std::string* rung) {
  const std::optional<Tensor> no_bias;
  const NormBackwardCall call{grad, x, "x", weight, no_bias, /*rstd=*/nullptr, eps, /*reads_bias=*/false};
  const auto out = run_norm_backward<RmsNormBackwardArgs>(kOp, call, rung);
  if (!out) return call_fallback<Gradients>("warpsmith::rms_norm_backward", grad, x, weight, eps);
  return {out->dx, out->dw};
}

Gradients rms_norm_backward(const Tensor& grad, const Tensor& x, std::optional<Tensor> weight, double eps) {
  return run(grad, x, weight, eps, nullptr);
}

Gradients rms_norm_backward_rung(const Tensor& grad, const Tensor& x, std::optional<Tensor> weight, double eps,
                                 std::string rung, std::string) {
  return run(grad, x, weight, eps, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));
  m.impl("rms_norm_backward.rung", TORCH_BOX(&rms_norm_backward_rung));
}

}  // namespace
}  // namespace warpsmith
