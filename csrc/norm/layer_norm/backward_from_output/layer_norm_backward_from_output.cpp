// Layer norm backward from the output: the binding.
#include "norm/layer_norm/backward_from_output/layer_norm_backward_from_output.h"

#include "norm/backward/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "layer_norm_backward_from_output";
const Ladder<LayerNormBackwardFromOutputArgs> ladder{"layer_norm/backward_from_output"};

std::optional<std::tuple<Tensor, Tensor, Tensor>> run(const Call& call, const Tensor& grad, const Tensor& y,
                                                      std::optional<Tensor> weight, std::optional<Tensor> bias,
                                                      const Tensor& rstd, double eps) {
  const NormBackwardCall given{
      .grad = grad, .x = y, .weight = weight, .bias = bias, .rstd = rstd, .eps = eps, .reads_bias = true};
  check_norm_backward(call.op, "y", given);
  return plain_gradients</*bias=*/true>(norm_backward<LayerNormBackwardFromOutputArgs>(call, given));
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
