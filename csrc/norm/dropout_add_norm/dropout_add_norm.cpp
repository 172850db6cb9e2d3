// dropout_add_rms_norm and dropout_add_layer_norm: checks, allocation, the choice of the rung.
#include "norm/dropout_add_norm/dropout_add_norm.h"

#include <optional>
#include <tuple>

#include "host/ladder.h"
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

// Nothing where no kernel takes the call.
std::optional<Outputs> run(const char* op, Tensor x, OptionalTensor residual, OptionalTensor weight,
                           OptionalTensor bias, OptionalTensor row_scale, const Options& options, bool layer,
                           const std::string* rung) {
  check_add_norm(op, x, residual, weight, bias);
  check_dropout(op, row_scale, options.p, x);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(op, "no rung takes ", dtype_name(x.scalar_type()));
    return std::nullopt;
  }
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  Tensor h = empty_contiguous(x, x.sizes(), residual_type(x, residual));
  if (y.numel() == 0) return Outputs{y, h};

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  make_contiguous(row_scale);
  const AddNormArgs base = add_norm_args(x, residual, weight, bias, options.eps, options.zero_centered, layer);
  DropoutAddNormArgs args{base, floats_of(row_scale), Dropout(options.p, options.seed, options.offset)};
  args.y = y.data_ptr();
  args.h = h.data_ptr();
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<DropoutAddNormArgs>::run_named(op, *rung, args, sm, stream);
  } else {
    const Rung<DropoutAddNormArgs>* best = Ladder<DropoutAddNormArgs>::choose(args, sm);
    if (best == nullptr) return std::nullopt;
    Ladder<DropoutAddNormArgs>::run(*best, args, stream);
  }
  return Outputs{y, h};
}

Outputs run_rms(const Tensor& x, const OptionalTensor& residual, const OptionalTensor& weight,
                const OptionalTensor& row_scale, const Options& o, const std::string* rung) {
  constexpr const char* kOp = "dropout_add_rms_norm";
  if (const auto found = run(kOp, x, residual, weight, std::nullopt, row_scale, o, /*layer=*/false, rung))
    return *found;
  return call_fallback<Outputs>("warpsmith::dropout_add_rms_norm", x, residual, weight, row_scale, o.p, o.seed,
                                o.offset, o.eps, o.zero_centered);
}

Outputs run_layer(const Tensor& x, const OptionalTensor& residual, const OptionalTensor& weight,
                  const OptionalTensor& bias, const OptionalTensor& row_scale, const Options& o,
                  const std::string* rung) {
  constexpr const char* kOp = "dropout_add_layer_norm";
  if (const auto found = run(kOp, x, residual, weight, bias, row_scale, o, /*layer=*/true, rung)) return *found;
  return call_fallback<Outputs>("warpsmith::dropout_add_layer_norm", x, residual, weight, bias, row_scale, o.p, o.seed,
                                o.offset, o.eps, o.zero_centered);
}

Outputs dropout_add_rms_norm(const Tensor& x, OptionalTensor residual, OptionalTensor weight, OptionalTensor row_scale,
                             double p, int64_t seed, int64_t offset, double eps, bool zero_centered) {
  return run_rms(x, residual, weight, row_scale, {p, seed, offset, eps, zero_centered}, nullptr);
}

Outputs dropout_add_rms_norm_rung(const Tensor& x, OptionalTensor residual, OptionalTensor weight,
                                  OptionalTensor row_scale, double p, int64_t seed, int64_t offset, double eps,
                                  bool zero_centered, std::string rung, std::string) {
  return run_rms(x, residual, weight, row_scale, {p, seed, offset, eps, zero_centered}, &rung);
}

Outputs dropout_add_layer_norm(const Tensor& x, OptionalTensor residual, OptionalTensor weight, OptionalTensor bias,
                               OptionalTensor row_scale, double p, int64_t seed, int64_t offset, double eps,
                               bool zero_centered) {
  return run_layer(x, residual, weight, bias, row_scale, {p, seed, offset, eps, zero_centered}, nullptr);
}

Outputs dropout_add_layer_norm_rung(const Tensor& x, OptionalTensor residual, OptionalTensor weight,
                                    OptionalTensor bias, OptionalTensor row_scale, double p, int64_t seed,
                                    int64_t offset, double eps, bool zero_centered, std::string rung, std::string) {
  return run_layer(x, residual, weight, bias, row_scale, {p, seed, offset, eps, zero_centered}, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("dropout_add_rms_norm", TORCH_BOX(&dropout_add_rms_norm));
  m.impl("dropout_add_rms_norm.rung", TORCH_BOX(&dropout_add_rms_norm_rung));
  m.impl("dropout_add_layer_norm", TORCH_BOX(&dropout_add_layer_norm));
  m.impl("dropout_add_layer_norm.rung", TORCH_BOX(&dropout_add_layer_norm_rung));
}

}  // namespace
}  // namespace warpsmith
