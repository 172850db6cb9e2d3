// dropout_add_rms_norm and dropout_add_layer_norm: checks, allocation, the choice of the rung.
#include "norm/dropout_add_norm/operands.h"

namespace warpsmith {
namespace {

const Ladder<DropoutAddNormArgs> ladder{"dropout_add_norm"};

using Outputs = std::tuple<Tensor, Tensor>;  // y, h

// What both operators are given besides their tensors.
struct Options {
  double p;
  int64_t seed, offset;
  double eps;
  bool zero_centered;
};

std::optional<Outputs> run(const CallInto& call, NormOperands given, OptionalTensor row_scale, const Options& options,
                           bool layer) {
  given.check(call.op);
  check_dropout(call.op, row_scale, options.p, given.x);
  if (!has_kernel(call, given.x)) return std::nullopt;
  const Tensor y = given.y_of(call), h = given.h_of(call, true);
  if (y.numel() == 0) return Outputs{y, h};
  row_scale = dense(row_scale);
  auto args = given.args<DropoutAddNormArgs>(y, layer, options.eps);
  args.weight_offset = given.weight && options.zero_centered ? 1.0f : 0.0f;
  args.h = h.data_ptr();
  args.row_scale = floats_of(row_scale);
  args.dropout = Dropout(options.p, options.seed, options.offset);
  if (serve(call, args, y)) return Outputs{y, h};
  return std::nullopt;
}

std::optional<Outputs> dropout_add_rms_norm(const CallInto& call, const Tensor& x, OptionalTensor residual,
                                            OptionalTensor weight, OptionalTensor row_scale, double p, int64_t seed,
                                            int64_t offset, double eps, bool zero_centered) {
  const Options options{p, seed, offset, eps, zero_centered};
  return run(call, {x, residual, weight, std::nullopt}, row_scale, options, /*layer=*/false);
}

std::optional<Outputs> dropout_add_layer_norm(const CallInto& call, const Tensor& x, OptionalTensor residual,
                                              OptionalTensor weight, OptionalTensor bias, OptionalTensor row_scale,
                                              double p, int64_t seed, int64_t offset, double eps, bool zero_centered) {
  const Options options{p, seed, offset, eps, zero_centered};
  return run(call, {x, residual, weight, bias}, row_scale, options, /*layer=*/true);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_into<&dropout_add_rms_norm>(m, "dropout_add_rms_norm");
  bind_into<&dropout_add_layer_norm>(m, "dropout_add_layer_norm");
}

}  // namespace
}  // namespace warpsmith
