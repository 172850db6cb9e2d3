// RMS norm backward from the output: the binding.
#include "norm/rms_norm_backward_from_output/rms_norm_backward_from_output.h"

#include <tuple>

#include "norm/backward_operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "rms_norm_backward_from_output";
const Ladder<RmsNormBackwardFromOutputArgs> ladder{kOp};

using Gradients = std::tuple<Tensor, Tensor>;

Gradients run(const Tensor& grad, const Tensor& y, const std::optional<Tensor>& weight, const Tensor& rstd, double eps,
              const std::string* rung) {
  const std::optional<Tensor> no_bias;
  const NormBackwardCall call{grad, y, "y", weight, no_bias, &rstd, eps, /*reads_bias=*/false};
  const auto out = run_norm_backward<RmsNormBackwardFromOutputArgs>(kOp, call, rung);
  if (!out) return call_fallback<Gradients>("warpsmith::rms_norm_backward_from_output", grad, y, weight, rstd, eps);
  return {out->dx, out->dw};
}

Gradients rms_norm_backward_from_output(const Tensor& grad, const Tensor& y, std::optional<Tensor> weight,
                                        const Tensor& rstd, double eps) {
  return run(grad, y, weight, rstd, eps, nullptr);
}

Gradients rms_norm_backward_from_output_rung(const Tensor& grad, const Tensor& y, std::optional<Tensor> weight,
                                             const Tensor& rstd, double eps, std::string rung, std::string) {
  return run(grad, y, weight, rstd, eps, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("rms_norm_backward_from_output", TORCH_BOX(&rms_norm_backward_from_output));
  m.impl("rms_norm_backward_from_output.rung", TORCH_BOX(&rms_norm_backward_from_output_rung));
}

}  // namespace
}  // namespace warpsmith
