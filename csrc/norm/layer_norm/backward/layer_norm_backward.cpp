// Layer norm backward: the binding.
#include "norm/layer_norm/backward/layer_norm_backward.h"

#include "norm/backward/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "layer_norm_backward";
const Ladder<LayerNormBackwardArgs> ladder{"layer_norm/backward"};

std::optional<std::tuple<Tensor, Tensor, Tensor>> run(const Call& call, const Tensor& grad, const Tensor& x,
                                                      std::optional<Tensor> weight, std::optional<Tensor> bias,
                                                      double eps) {
  const NormBackwardCall given{.grad = grad, .x = x, .weight = weight, .bias = bias, .eps = eps};
  check_norm_backward(call.op, "x", given);
  return plain_gradients</*bias=*/true>(norm_backward<LayerNormBackwardArgs>(call, given));
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
