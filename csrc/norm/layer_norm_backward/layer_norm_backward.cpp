// Layer norm backward: the binding.
#include "norm/layer_norm_backward/layer_norm_backward.h"

#include <tuple>

#include "norm/backward_operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "layer_norm_backward";
const Ladder<LayerNormBackwardArgs> ladder{kOp};

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Gradients run(const Tensor& grad, const Tensor& x, const std::optional<Tensor>& weight,
              const std::optional<Tensor>& bias, double eps, const std::string* rung) {
  const NormBackwardCall call{grad, x, "x", weight, bias, /*rstd=*/nullptr, eps, /*reads_bias=*/false};
  const auto out = run_norm_backward<LayerNormBackwardArgs>(kOp, call, rung);
  if (!out) return call_fallback<Gradients>("warpsmith::layer_norm_backward", grad, x, weight, bias, eps);
  return {out->dx, out->dw, out->db};
}

Gradients layer_norm_backward(const Tensor& grad, const Tensor& x, std::optional<Tensor> weight,
                              std::optional<Tensor> bias, double eps) {
  return run(grad, x, weight, bias, eps, nullptr);
}

Gradients layer_norm_backward_rung(const Tensor& grad, const Tensor& x, std::optional<Tensor> weight,
                                   std::optional<Tensor> bias, double eps, std::string rung, std::string) {
  return run(grad, x, weight, bias, eps, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("layer_norm_backward", TORCH_BOX(&layer_norm_backward));
  m.impl("layer_norm_backward.rung", TORCH_BOX(&layer_norm_backward_rung));
}

}  // namespace
}  // namespace warpsmith
