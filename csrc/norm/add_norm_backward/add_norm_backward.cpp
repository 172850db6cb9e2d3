// add_rms_norm_backward and add_layer_norm_backward: what each asks of the shared binding.
#include "norm/add_norm_backward/add_norm_backward.h"

#include <tuple>

#include "norm/add_norm_backward/operands.h"

namespace warpsmith {
namespace {

const Ladder<AddNormBackwardArgs> ladder{"add_norm_backward"};

using RmsGradients = std::tuple<Tensor, Tensor, Tensor>;            // dh, dx, dw
using LayerGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // dh, dx, dw, db

std::optional<Gradients> run(const char* op, const Tensor& grad, const OptionalTensor& grad_h, const Tensor& h,
                             const OptionalTensor& weight, const OptionalTensor& bias, double eps, bool zero_centered,
                             bool separate_x, bool layer, const std::string* rung) {
  return run_add_norm_backward<AddNormBackwardArgs>(op, grad, grad_h, h, weight, bias, eps, zero_centered, layer,
                                                    separate_x, rung, [](const AddNormBackwardArgs& a) { return a; });
}

RmsGradients run_rms(const Tensor& grad, const OptionalTensor& grad_h, const Tensor& h, const OptionalTensor& weight,
                     double eps, bool zero_centered, bool separate_x, const std::string* rung) {
  constexpr const char* kOp = "add_rms_norm_backward";
  if (const auto found =
          run(kOp, grad, grad_h, h, weight, std::nullopt, eps, zero_centered, separate_x, /*layer=*/false, rung)) {
    const auto& [dh, dx, dw, db] = *found;
    return {dh, dx, dw};
  }
  return call_fallback<RmsGradients>("warpsmith::add_rms_norm_backward", grad, grad_h, h, weight, eps, zero_centered,
                                     separate_x);
}

LayerGradients run_layer(const Tensor& grad, const OptionalTensor& grad_h, const Tensor& h,
                         const OptionalTensor& weight, const OptionalTensor& bias, double eps, bool zero_centered,
                         bool separate_x, const std::string* rung) {
  constexpr const char* kOp = "add_layer_norm_backward";
  if (const auto found =
          run(kOp, grad, grad_h, h, weight, bias, eps, zero_centered, separate_x, /*layer=*/true, rung)) {
    const auto& [dh, dx, dw, db] = *found;
    return {dh, dx, dw, db};
  }
  return call_fallback<LayerGradients>("warpsmith::add_layer_norm_backward", grad, grad_h, h, weight, bias, eps,
                                       zero_centered, separate_x);
}

RmsGradients add_rms_norm_backward(const Tensor& grad, OptionalTensor grad_h, const Tensor& h, OptionalTensor weight,
                                   double eps, bool zero_centered, bool separate_x) {
  return run_rms(grad, grad_h, h, weight, eps, zero_centered, separate_x, nullptr);
}

RmsGradients add_rms_norm_backward_rung(const Tensor& grad, OptionalTensor grad_h, const Tensor& h,
                                        OptionalTensor weight, double eps, bool zero_centered, bool separate_x,
                                        std::string rung, std::string) {
  return run_rms(grad, grad_h, h, weight, eps, zero_centered, separate_x, &rung);
}

LayerGradients add_layer_norm_backward(const Tensor& grad, OptionalTensor grad_h, const Tensor& h,
                                       OptionalTensor weight, OptionalTensor bias, double eps, bool zero_centered,
                                       bool separate_x) {
  return run_layer(grad, grad_h, h, weight, bias, eps, zero_centered, separate_x, nullptr);
}

LayerGradients add_layer_norm_backward_rung(const Tensor& grad, OptionalTensor grad_h, const Tensor& h,
                                            OptionalTensor weight, OptionalTensor bias, double eps, bool zero_centered,
                                            bool separate_x, std::string rung, std::string) {
  return run_layer(grad, grad_h, h, weight, bias, eps, zero_centered, separate_x, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("add_rms_norm_backward", TORCH_BOX(&add_rms_norm_backward));
  m.impl("add_rms_norm_backward.rung", TORCH_BOX(&add_rms_norm_backward_rung));
  m.impl("add_layer_norm_backward", TORCH_BOX(&add_layer_norm_backward));
  m.impl("add_layer_norm_backward.rung", TORCH_BOX(&add_layer_norm_backward_rung));
}

}  // namespace
}  // namespace warpsmith
