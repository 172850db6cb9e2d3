// dropout_add_rms_norm_backward and dropout_add_layer_norm_backward: what each asks of the shared binding.
#include "norm/dropout_add_norm_backward/dropout_add_norm_backward.h"

#include <tuple>

#include "norm/add_norm_backward/operands.h"
#include "norm/dropout_add_norm/operands.h"

namespace warpsmith {
namespace {

const Ladder<DropoutAddNormBackwardArgs> ladder{"dropout_add_norm_backward"};

using RmsGradients = std::tuple<Tensor, Tensor, Tensor>;            // dh, dx, dw
using LayerGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // dh, dx, dw, db

// What both operators are given besides their tensors.
struct Options {
  double p;
  int64_t seed, offset;
  double eps;
  bool zero_centered;
};

std::optional<Gradients> run(const char* op, const Tensor& grad, const OptionalTensor& grad_h, const Tensor& h,
                             const OptionalTensor& weight, const OptionalTensor& bias, OptionalTensor row_scale,
                             const Options& options, bool layer, const std::string* rung) {
  check_add_norm_backward(op, grad, grad_h, h, weight, bias);
  check_dropout(op, row_scale, options.p, grad);
  make_contiguous(row_scale);
  return run_add_norm_backward<DropoutAddNormBackwardArgs>(
      op, grad, grad_h, h, weight, bias, options.eps, options.zero_centered, layer, /*separate_x=*/true, rung,
      [&](const AddNormBackwardArgs& a) {
        const Dropout dropout(options.p, options.seed, options.offset);
        return DropoutAddNormBackwardArgs{a, floats_of(row_scale), dropout};
      });
}

RmsGradients run_rms(const Tensor& grad, const OptionalTensor& grad_h, const Tensor& h, const OptionalTensor& weight,
                     const OptionalTensor& row_scale, const Options& o, const std::string* rung) {
  constexpr const char* kOp = "dropout_add_rms_norm_backward";
  if (const auto found = run(kOp, grad, grad_h, h, weight, std::nullopt, row_scale, o, /*layer=*/false, rung)) {
    const auto& [dh, dx, dw, db] = *found;
    return {dh, dx, dw};
  }
  return call_fallback<RmsGradients>("warpsmith::dropout_add_rms_norm_backward", grad, grad_h, h, weight, row_scale,
                                     o.p, o.seed, o.offset, o.eps, o.zero_centered);
}

LayerGradients run_layer(const Tensor& grad, const OptionalTensor& grad_h, const Tensor& h,
                         const OptionalTensor& weight, const OptionalTensor& bias, const OptionalTensor& row_scale,
                         const Options& o, const std::string* rung) {
  constexpr const char* kOp = "dropout_add_layer_norm_backward";
  if (const auto found = run(kOp, grad, grad_h, h, weight, bias, row_scale, o, /*layer=*/true, rung)) {
    const auto& [dh, dx, dw, db] = *found;
    return {dh, dx, dw, db};
  }
  return call_fallback<LayerGradients>("warpsmith::dropout_add_layer_norm_backward", grad, grad_h, h, weight, bias,
                                       row_scale, o.p, o.seed, o.offset, o.eps, o.zero_centered);
}

RmsGradients dropout_add_rms_norm_backward(const Tensor& grad, OptionalTensor grad_h, const Tensor& h,
                                           OptionalTensor weight, OptionalTensor row_scale, double p, int64_t seed,
                                           int64_t offset, double eps, bool zero_centered) {
  return run_rms(grad, grad_h, h, weight, row_scale, {p, seed, offset, eps, zero_centered}, nullptr);
}

RmsGradients dropout_add_rms_norm_backward_rung(const Tensor& grad, OptionalTensor grad_h, const Tensor& h,
                                                OptionalTensor weight, OptionalTensor row_scale, double p, int64_t seed,
                                                int64_t offset, double eps, bool zero_centered, std::string rung,
                                                std::string) {
  return run_rms(grad, grad_h, h, weight, row_scale, {p, seed, offset, eps, zero_centered}, &rung);
}

LayerGradients dropout_add_layer_norm_backward(const Tensor& grad, OptionalTensor grad_h, const Tensor& h,
                                               OptionalTensor weight, OptionalTensor bias, OptionalTensor row_scale,
                                               double p, int64_t seed, int64_t offset, double eps, bool zero_centered) {
  return run_layer(grad, grad_h, h, weight, bias, row_scale, {p, seed, offset, eps, zero_centered}, nullptr);
}

LayerGradients dropout_add_layer_norm_backward_rung(const Tensor& grad, OptionalTensor grad_h, const Tensor& h,
                                                    OptionalTensor weight, OptionalTensor bias,
                                                    OptionalTensor row_scale, double p, int64_t seed, int64_t offset,
                                                    double eps, bool zero_centered, std::string rung, std::string) {
  return run_layer(grad, grad_h, h, weight, bias, row_scale, {p, seed, offset, eps, zero_centered}, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("dropout_add_rms_norm_backward", TORCH_BOX(&dropout_add_rms_norm_backward));
  m.impl("dropout_add_rms_norm_backward.rung", TORCH_BOX(&dropout_add_rms_norm_backward_rung));
  m.impl("dropout_add_layer_norm_backward", TORCH_BOX(&dropout_add_layer_norm_backward));
  m.impl("dropout_add_layer_norm_backward.rung", TORCH_BOX(&dropout_add_layer_norm_backward_rung));
}

}  // namespace
}  // namespace warpsmith
