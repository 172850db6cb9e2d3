// rms_norm_fp8, layer_norm_fp8 and both after a residual addition: checks, allocation, the choice of the rung.
#include "norm/forward/operands.h"

namespace warpsmith {
namespace {

const Ladder<AddNormFp8Args> ladder{"add_norm_fp8"};

using Outputs = std::tuple<Tensor, Tensor>;  // y, h

void check_scale(const char* op, const Tensor& scale, const Tensor& x) {
  check_same_device(op, "scale", scale, x);
  const ScalarType type = scale.scalar_type();
  const bool both_double = type == ScalarType::Double && x.scalar_type() == ScalarType::Double;
  if (scale.numel() == 1 && (type == ScalarType::Float || both_double)) return;
  fail(op, "expected scale to be one torch.float32 value, got shape ", shape_text(scale.sizes()), " of ",
       dtype_name(type));
}

void check_y_type(const char* op, ScalarType type) {
  if (type == ScalarType::Float8_e4m3fn || type == ScalarType::Float8_e5m2) return;
  fail(op, "expected dtype to be torch.float8_e4m3fn or torch.float8_e5m2, got ", dtype_name(type));
}

// h is empty without a residual.
std::optional<Outputs> run(const CallInto& call, NormOperands given, const OptionalTensor& scale, ScalarType type,
                           double eps, bool zero_centered, bool layer) {
  given.check(call.op);
  if (scale) check_scale(call.op, *scale, given.x);
  check_y_type(call.op, type);
  if (!has_kernel(call, given.x)) return std::nullopt;
  const Tensor y = result(call, given.x, given.x.sizes(), type);
  const Tensor h = given.h_of(call, given.residual.has_value());
  if (y.numel() == 0) return Outputs{y, h};
  auto args = given.args<AddNormFp8Args>(y, layer, eps);
  args.weight_offset = given.weight && zero_centered ? 1.0f : 0.0f;
  args.h = given.residual ? h.data_ptr() : nullptr;
  args.scale = scale ? static_cast<const float*>(scale->data_ptr()) : nullptr;
  if (serve(call, args, y)) return Outputs{y, h};
  return std::nullopt;
}

OptionalTensor only_y(const std::optional<Outputs>& outputs) {
  return outputs ? OptionalTensor(std::get<0>(*outputs)) : std::nullopt;
}

OptionalTensor rms_norm_fp8(const CallInto& call, const Tensor& x, OptionalTensor weight, OptionalTensor scale,
                            ScalarType type, double eps, bool zero_centered) {
  return only_y(run(call, {x, std::nullopt, weight, std::nullopt}, scale, type, eps, zero_centered, /*layer=*/false));
}

OptionalTensor layer_norm_fp8(const CallInto& call, const Tensor& x, OptionalTensor weight, OptionalTensor bias,
                              OptionalTensor scale, ScalarType type, double eps, bool zero_centered) {
  return only_y(run(call, {x, std::nullopt, weight, bias}, scale, type, eps, zero_centered, /*layer=*/true));
}

std::optional<Outputs> add_rms_norm_fp8(const CallInto& call, const Tensor& x, const Tensor& residual,
                                        OptionalTensor weight, OptionalTensor scale, ScalarType type, double eps,
                                        bool zero_centered) {
  return run(call, {x, residual, weight, std::nullopt}, scale, type, eps, zero_centered, /*layer=*/false);
}

std::optional<Outputs> add_layer_norm_fp8(const CallInto& call, const Tensor& x, const Tensor& residual,
                                          OptionalTensor weight, OptionalTensor bias, OptionalTensor scale,
                                          ScalarType type, double eps, bool zero_centered) {
  return run(call, {x, residual, weight, bias}, scale, type, eps, zero_centered, /*layer=*/true);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_into<&rms_norm_fp8>(m, "rms_norm_fp8");
  bind_into<&layer_norm_fp8>(m, "layer_norm_fp8");
  bind_into<&add_rms_norm_fp8>(m, "add_rms_norm_fp8");
  bind_into<&add_layer_norm_fp8>(m, "add_layer_norm_fp8");
}

}  // namespace
}  // namespace warpsmith
