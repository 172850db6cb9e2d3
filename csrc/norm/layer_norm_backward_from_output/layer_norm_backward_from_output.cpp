// Layer norm backward from the output: the binding.
#include "norm/layer_norm_backward_from_output/layer_norm_backward_from_output.h"

#include <tuple>

#include "norm/backward_operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "layer_norm_backward_from_output";
const Ladder<LayerNormBackwardFromOutputArgs> ladder{kOp};

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Gradients run(const Tensor& grad, const Tensor& y, const std::optional<Tensor>& weight,
              const std::optional<Tensor>& bias, const Tensor& rstd, double eps, const std::string* rung) {
  const NormBackwardCall call{grad, y, "y", weight, bias, &rstd, eps, /*reads_bias=*/true};
  const auto out = run_norm_backward<LayerNormBackwardFromOutputArgs>(kOp, call, rung);
  if (!out)
    return call_fallback<Gradients>("warpsmith::layer_norm_backward_from_output", grad, y, weight, bias, rstd, eps);
  return {out->dx, out->dw, out->db};
}

Gradients layer_norm_backward_from_output(const Tensor& grad, const Tensor& y, std::optional<Tensor> weight,
                                          std::optional<Tensor> bias, const Tensor& rstd, double eps) {
  return run(grad, y, weight, bias, rstd, eps, nullptr);
}

Gradients layer_norm_backward_from_output_rung(const Tensor& grad, const Tensor& y, std::optional<Tensor> weight,
                                               std::optional<Tensor> bias, const Tensor& rstd, double eps,
                                               std::string rung, std::string) {
  return run(grad, y, weight, bias, rstd, eps, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("layer_norm_backward_from_output", TORCH_BOX(&layer_norm_backward_from_output));
  m.impl("layer_norm_backward_from_output.rung", TORCH_BOX(&layer_norm_backward_from_output_rung));
}

}  // namespace
}  // namespace warpsmith
