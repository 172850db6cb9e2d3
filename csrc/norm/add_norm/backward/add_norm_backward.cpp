// add_rms_norm_backward and add_layer_norm_backward: the bindings.
#include "norm/add_norm/backward/add_norm_backward.h"

#include "norm/backward/operands.h"

namespace warpsmith {
namespace {

const Ladder<AddNormBackwardArgs> ladder{"add_norm/backward"};

std::optional<std::tuple<Tensor, Tensor, Tensor>> run_rms(const Call& call, const Tensor& grad,
                                                          std::optional<Tensor> grad_h, const Tensor& h,
                                                          std::optional<Tensor> weight, double eps, bool zero_centered,
                                                          bool separate_x) {
  const NormBackwardCall given{.grad = grad,
                               .x = h,
                               .weight = weight,
                               .grad_x = grad_h,
                               .eps = eps,
                               .zero_centered = zero_centered,
                               .separate = separate_x};
  check_residual_backward(call.op, given);
  return residual_gradients</*bias=*/false>(norm_backward<AddNormBackwardArgs>(call, given));
}

std::optional<std::tuple<Tensor, Tensor, Tensor, Tensor>> run_layer(const Call& call, const Tensor& grad,
                                                                    std::optional<Tensor> grad_h, const Tensor& h,
                                                                    std::optional<Tensor> weight,
                                                                    std::optional<Tensor> bias, double eps,
                                                                    bool zero_centered, bool separate_x) {
  const NormBackwardCall given{.grad = grad,
                               .x = h,
                               .weight = weight,
                               .bias = bias,
                               .grad_x = grad_h,
                               .eps = eps,
                               .zero_centered = zero_centered,
                               .separate = separate_x,
                               .layer = true};
  check_residual_backward(call.op, given);
  return residual_gradients</*bias=*/true>(norm_backward<AddNormBackwardArgs>(call, given));
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&run_rms>(m, "add_rms_norm_backward");
  bind<&run_layer>(m, "add_layer_norm_backward");
}

}  // namespace
}  // namespace warpsmith
