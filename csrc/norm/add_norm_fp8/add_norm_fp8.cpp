// rms_norm_fp8, layer_norm_fp8 and both after a residual addition: checks, allocation, the choice of the rung.
#include "norm/add_norm_fp8/add_norm_fp8.h"

#include <tuple>

#include "host/ladder.h"
#include "norm/add_norm/operands.h"

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

// What every one of the operators is given.
struct Call {
  const char* op;
  Tensor x;
  OptionalTensor residual, weight, bias, scale;
  ScalarType type;  // of y
  double eps;
  bool zero_centered, layer;
  const std::string* rung;  // null for the best one
};

// Calls fallback() where no kernel takes the call. h is empty without a residual.
template <class Fallback>
Outputs run(Call c, Fallback&& fallback) {
  check_add_norm(c.op, c.x, c.residual, c.weight, c.bias);
  if (c.scale) check_scale(c.op, *c.scale, c.x);
  check_y_type(c.op, c.type);
  if (!has_float_kernel(c.x)) {
    if (c.rung != nullptr) fail(c.op, "no rung takes ", dtype_name(c.x.scalar_type()));
    return fallback();
  }
  constexpr int64_t kNone = 0;
  Tensor y = empty_contiguous(c.x, c.x.sizes(), c.type);
  Tensor h = empty_contiguous(c.x, c.residual ? c.x.sizes() : Sizes(&kNone, 1), residual_type(c.x, c.residual));
  if (y.numel() == 0) return {y, h};

  const int device = c.x.get_device_index();
  const DeviceScope scope(device);
  const AddNormArgs base = add_norm_args(c.x, c.residual, c.weight, c.bias, c.eps, c.zero_centered, c.layer);
  AddNormFp8Args args{base, c.scale ? static_cast<const float*>(c.scale->data_ptr()) : nullptr, *kernel_dtype(c.type)};
  args.y = y.data_ptr();
  args.h = c.residual ? h.data_ptr() : nullptr;
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (c.rung != nullptr) {
    Ladder<AddNormFp8Args>::run_named(c.op, *c.rung, args, sm, stream);
  } else {
    const Rung<AddNormFp8Args>* best = Ladder<AddNormFp8Args>::choose(args, sm);
    if (best == nullptr) return fallback();
    Ladder<AddNormFp8Args>::run(*best, args, stream);
  }
  return {y, h};
}

Tensor run_rms(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& scale, ScalarType type, double eps,
               bool zero_centered, const std::string* rung) {
  const Call call{.op = "rms_norm_fp8",
                  .x = x,
                  .residual = std::nullopt,
                  .weight = weight,
                  .bias = std::nullopt,
                  .scale = scale,
                  .type = type,
                  .eps = eps,
                  .zero_centered = zero_centered,
                  .layer = false,
                  .rung = rung};
  return std::get<0>(run(call, [&] {
    Tensor y = call_fallback<Tensor>("warpsmith::rms_norm_fp8", x, weight, scale, type, eps, zero_centered);
    return Outputs{y, y};
  }));
}

Tensor run_layer(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, const OptionalTensor& scale,
                 ScalarType type, double eps, bool zero_centered, const std::string* rung) {
  const Call call{.op = "layer_norm_fp8",
                  .x = x,
                  .residual = std::nullopt,
                  .weight = weight,
                  .bias = bias,
                  .scale = scale,
                  .type = type,
                  .eps = eps,
                  .zero_centered = zero_centered,
                  .layer = true,
                  .rung = rung};
  return std::get<0>(run(call, [&] {
    Tensor y = call_fallback<Tensor>("warpsmith::layer_norm_fp8", x, weight, bias, scale, type, eps, zero_centered);
    return Outputs{y, y};
  }));
}

Outputs run_add_rms(const Tensor& x, const Tensor& residual, const OptionalTensor& weight, const OptionalTensor& scale,
                    ScalarType type, double eps, bool zero_centered, const std::string* rung) {
  const Call call{.op = "add_rms_norm_fp8",
                  .x = x,
                  .residual = residual,
                  .weight = weight,
                  .bias = std::nullopt,
                  .scale = scale,
                  .type = type,
                  .eps = eps,
                  .zero_centered = zero_centered,
                  .layer = false,
                  .rung = rung};
  return run(call, [&] {
    return call_fallback<Outputs>("warpsmith::add_rms_norm_fp8", x, residual, weight, scale, type, eps, zero_centered);
  });
}

Outputs run_add_layer(const Tensor& x, const Tensor& residual, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& scale, ScalarType type, double eps, bool zero_centered,
                      const std::string* rung) {
  const Call call{.op = "add_layer_norm_fp8",
                  .x = x,
                  .residual = residual,
                  .weight = weight,
                  .bias = bias,
                  .scale = scale,
                  .type = type,
                  .eps = eps,
                  .zero_centered = zero_centered,
                  .layer = true,
                  .rung = rung};
  return run(call, [&] {
    return call_fallback<Outputs>("warpsmith::add_layer_norm_fp8", x, residual, weight, bias, scale, type, eps,
                                  zero_centered);
  });
}

Tensor rms_norm_fp8(const Tensor& x, OptionalTensor weight, OptionalTensor scale, ScalarType type, double eps,
                    bool zero_centered) {
  return run_rms(x, weight, scale, type, eps, zero_centered, nullptr);
}

Tensor rms_norm_fp8_rung(const Tensor& x, OptionalTensor weight, OptionalTensor scale, ScalarType type, double eps,
                         bool zero_centered, std::string rung, std::string) {
  return run_rms(x, weight, scale, type, eps, zero_centered, &rung);
}

Tensor layer_norm_fp8(const Tensor& x, OptionalTensor weight, OptionalTensor bias, OptionalTensor scale,
                      ScalarType type, double eps, bool zero_centered) {
  return run_layer(x, weight, bias, scale, type, eps, zero_centered, nullptr);
}

Tensor layer_norm_fp8_rung(const Tensor& x, OptionalTensor weight, OptionalTensor bias, OptionalTensor scale,
                           ScalarType type, double eps, bool zero_centered, std::string rung, std::string) {
  return run_layer(x, weight, bias, scale, type, eps, zero_centered, &rung);
}

Outputs add_rms_norm_fp8(const Tensor& x, const Tensor& residual, OptionalTensor weight, OptionalTensor scale,
                         ScalarType type, double eps, bool zero_centered) {
  return run_add_rms(x, residual, weight, scale, type, eps, zero_centered, nullptr);
}

Outputs add_rms_norm_fp8_rung(const Tensor& x, const Tensor& residual, OptionalTensor weight, OptionalTensor scale,
                              ScalarType type, double eps, bool zero_centered, std::string rung, std::string) {
  return run_add_rms(x, residual, weight, scale, type, eps, zero_centered, &rung);
}

Outputs add_layer_norm_fp8(const Tensor& x, const Tensor& residual, OptionalTensor weight, OptionalTensor bias,
                           OptionalTensor scale, ScalarType type, double eps, bool zero_centered) {
  return run_add_layer(x, residual, weight, bias, scale, type, eps, zero_centered, nullptr);
}

Outputs add_layer_norm_fp8_rung(const Tensor& x, const Tensor& residual, OptionalTensor weight, OptionalTensor bias,
                                OptionalTensor scale, ScalarType type, double eps, bool zero_centered, std::string rung,
                                std::string) {
  return run_add_layer(x, residual, weight, bias, scale, type, eps, zero_centered, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("rms_norm_fp8", TORCH_BOX(&rms_norm_fp8));
  m.impl("rms_norm_fp8.rung", TORCH_BOX(&rms_norm_fp8_rung));
  m.impl("layer_norm_fp8", TORCH_BOX(&layer_norm_fp8));
  m.impl("layer_norm_fp8.rung", TORCH_BOX(&layer_norm_fp8_rung));
  m.impl("add_rms_norm_fp8", TORCH_BOX(&add_rms_norm_fp8));
  m.impl("add_rms_norm_fp8.rung", TORCH_BOX(&add_rms_norm_fp8_rung));
  m.impl("add_layer_norm_fp8", TORCH_BOX(&add_layer_norm_fp8));
  m.impl("add_layer_norm_fp8.rung", TORCH_BOX(&add_layer_norm_fp8_rung));
}

}  // namespace
}  // namespace warpsmith
