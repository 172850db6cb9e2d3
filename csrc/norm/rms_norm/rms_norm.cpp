// RMS norm, alone and with the rstd of its rows: checks, allocation, the choice of the rung.
#include "norm/forward/operands.h"

namespace warpsmith {
namespace {

const Ladder<RmsNormArgs> ladder{"rms_norm"};

OptionalTensor run(const CallInto& call, const Tensor& x, OptionalTensor weight, double eps) {
  return norm_of<RmsNormArgs>(call, {x, std::nullopt, weight, std::nullopt}, eps);
}

std::optional<WithRstd> run_with_rstd(const Call& call, const Tensor& x, OptionalTensor weight, double eps) {
  return norm_with_rstd<RmsNormArgs>(call, {x, std::nullopt, weight, std::nullopt}, eps);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_into<&run>(m, "rms_norm");
  bind<&run_with_rstd>(m, "rms_norm_with_rstd");
}

}  // namespace
}  // namespace warpsmith
