// dropout_add_rms_norm_backward and dropout_add_layer_norm_backward: the bindings.
#include "norm/dropout_add_norm/backward/dropout_add_norm_backward.h"

#include "norm/backward/operands.h"
#include "norm/dropout_add_norm/operands.h"

namespace warpsmith {
namespace {

const Ladder<DropoutAddNormBackwardArgs> ladder{"dropout_add_norm/backward"};

// p is checked before anything is made of it.
std::optional<NormGradients> run(const Call& call, NormBackwardCall given, double p, int64_t seed, int64_t offset) {
  check_residual_backward(call.op, given);
  check_dropout(call.op, given.row_scale, p, given.grad);
  given.separate = true;
  given.dropout = Dropout(p, seed, offset);
  return norm_backward<DropoutAddNormBackwardArgs>(call, given);
}

std::optional<std::tuple<Tensor, Tensor, Tensor>> run_rms(const Call& call, const Tensor& grad,
                                                          std::optional<Tensor> grad_h, const Tensor& h,
                                                          std::optional<Tensor> weight, std::optional<Tensor> row_scale,
                                                          double p, int64_t seed, int64_t offset, double eps,
                                                          bool zero_centered) {
  const NormBackwardCall given{.grad = grad,
                               .x = h,
                               .weight = weight,
                               .grad_x = grad_h,
                               .row_scale = row_scale,
                               .eps = eps,
                               .zero_centered = zero_centered};
  return residual_gradients</*bias=*/false>(run(call, given, p, seed, offset));
}

std::optional<std::tuple<Tensor, Tensor, Tensor, Tensor>> run_layer(
    const Call& call, const Tensor& grad, std::optional<Tensor> grad_h, const Tensor& h, std::optional<Tensor> weight,
    std::optional<Tensor> bias, std::optional<Tensor> row_scale, double p, int64_t seed, int64_t offset, double eps,
    bool zero_centered) {
  const NormBackwardCall given{.grad = grad,
                               .x = h,
                               .weight = weight,
                               .bias = bias,
                               .grad_x = grad_h,
                               .row_scale = row_scale,
                               .eps = eps,
                               .zero_centered = zero_centered,
                               .layer = true};
  return residual_gradients</*bias=*/true>(run(call, given, p, seed, offset));
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&run_rms>(m, "dropout_add_rms_norm_backward");
  bind<&run_layer>(m, "dropout_add_layer_norm_backward");
}

}  // namespace
}  // namespace warpsmith
