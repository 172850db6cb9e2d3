// add_rms_norm and add_layer_norm: checks, allocation, the choice of the rung.
#include "norm/forward/operands.h"

namespace warpsmith {
namespace {

const Ladder<AddNormArgs> ladder{"add_norm"};

using Outputs = std::tuple<Tensor, Tensor>;  // y, h

std::optional<Outputs> run(const CallInto& call, NormOperands given, double eps, bool zero_centered, bool layer) {
  given.check(call.op);
  if (!has_kernel(call, given.x)) return std::nullopt;
  const Tensor y = given.y_of(call), h = given.h_of(call, given.residual.has_value());
  if (y.numel() == 0) return Outputs{y, h};
  auto args = given.args<AddNormArgs>(y, layer, eps);
  args.weight_offset = given.weight && zero_centered ? 1.0f : 0.0f;
  args.h = given.residual ? h.data_ptr() : nullptr;
  if (serve(call, args, y)) return Outputs{y, h};
  return std::nullopt;
}

std::optional<Outputs> add_rms_norm(const CallInto& call, const Tensor& x, OptionalTensor residual,
                                    OptionalTensor weight, double eps, bool zero_centered) {
  return run(call, {x, residual, weight, std::nullopt}, eps, zero_centered, /*layer=*/false);
}

std::optional<Outputs> add_layer_norm(const CallInto& call, const Tensor& x, OptionalTensor residual,
                                      OptionalTensor weight, OptionalTensor bias, double eps, bool zero_centered) {
  return run(call, {x, residual, weight, bias}, eps, zero_centered, /*layer=*/true);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_into<&add_rms_norm>(m, "add_rms_norm");
  bind_into<&add_layer_norm>(m, "add_layer_norm");
}

}  // namespace
}  // namespace warpsmith
