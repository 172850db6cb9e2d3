// Layer norm, alone and with the rstd of its rows: checks, allocation, the choice of the rung.
#include "norm/forward/operands.h"

namespace warpsmith {
namespace {

const Ladder<LayerNormArgs> ladder{"layer_norm"};

OptionalTensor run(const CallInto& call, const Tensor& x, OptionalTensor weight, OptionalTensor bias, double eps) {
  return norm_of<LayerNormArgs>(call, {x, std::nullopt, weight, bias}, eps);
}

std::optional<WithRstd> run_with_rstd(const Call& call, const Tensor& x, OptionalTensor weight, OptionalTensor bias,
                                      double eps) {
  return norm_with_rstd<LayerNormArgs>(call, {x, std::nullopt, weight, bias}, eps);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_into<&run>(m, "layer_norm");
  bind<&run_with_rstd>(m, "layer_norm_with_rstd");
}

}  // namespace
}  // namespace warpsmith
