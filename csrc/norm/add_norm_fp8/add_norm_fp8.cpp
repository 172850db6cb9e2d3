// rms_norm_fp8 and add_rms_norm_fp8: checks, allocation, the choice of the rung.
#include "norm/add_norm_fp8/add_norm_fp8.h"

#include <tuple>

#include "host/registry.h"
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

// Calls fallback() where no kernel takes the call. h is empty without a residual.
template <class Fallback>
Outputs run(const char* op, Tensor x, OptionalTensor residual, OptionalTensor weight, const OptionalTensor& scale,
            ScalarType type, double eps, bool zero_centered, const std::string* rung, Fallback&& fallback) {
  OptionalTensor bias;
  check_add_norm(op, x, residual, weight, bias);
  if (scale) check_scale(op, *scale, x);
  check_y_type(op, type);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(op, "no rung takes ", dtype_name(x.scalar_type()));
    return fallback();
  }
  constexpr int64_t kNone = 0;
  Tensor y = empty_contiguous(x, x.sizes(), type);
  Tensor h = empty_contiguous(x, residual ? x.sizes() : Sizes(&kNone, 1), residual_type(x, residual));
  if (y.numel() == 0) return {y, h};

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const AddNormArgs base = add_norm_args(x, residual, weight, bias, eps, zero_centered, /*layer=*/false);
  AddNormFp8Args args{base, scale ? static_cast<const float*>(scale->data_ptr()) : nullptr, *kernel_dtype(type)};
  args.y = y.data_ptr();
  args.h = residual ? h.data_ptr() : nullptr;
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<AddNormFp8Args>::run_named(op, *rung, args, sm, stream);
  } else {
    const Rung<AddNormFp8Args>* best = Ladder<AddNormFp8Args>::choose(args, sm);
    if (best == nullptr) return fallback();
    Ladder<AddNormFp8Args>::run(*best, args, stream);
  }
  return {y, h};
}

Tensor run_alone(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& scale, ScalarType type,
                 double eps, bool zero_centered, const std::string* rung) {
  const Outputs outputs = run("rms_norm_fp8", x, std::nullopt, weight, scale, type, eps, zero_centered, rung, [&] {
    Tensor y = call_fallback<Tensor>("warpsmith::rms_norm_fp8", x, weight, scale, type, eps, zero_centered);
    return Outputs{y, y};
  });
  return std::get<0>(outputs);
}

Outputs run_added(const Tensor& x, const Tensor& residual, const OptionalTensor& weight, const OptionalTensor& scale,
                  ScalarType type, double eps, bool zero_centered, const std::string* rung) {
  return run("add_rms_norm_fp8", x, residual, weight, scale, type, eps, zero_centered, rung, [&] {
    return call_fallback<Outputs>("warpsmith::add_rms_norm_fp8", x, residual, weight, scale, type, eps, zero_centered);
  });
}

Tensor rms_norm_fp8(const Tensor& x, OptionalTensor weight, OptionalTensor scale, ScalarType type, double eps,
                    bool zero_centered) {
  return run_alone(x, weight, scale, type, eps, zero_centered, nullptr);
}

Tensor rms_norm_fp8_rung(const Tensor& x, OptionalTensor weight, OptionalTensor scale, ScalarType type, double eps,
                         bool zero_centered, std::string rung, std::string) {
  return run_alone(x, weight, scale, type, eps, zero_centered, &rung);
}

Outputs add_rms_norm_fp8(const Tensor& x, const Tensor& residual, OptionalTensor weight, OptionalTensor scale,
                         ScalarType type, double eps, bool zero_centered) {
  return run_added(x, residual, weight, scale, type, eps, zero_centered, nullptr);
}

Outputs add_rms_norm_fp8_rung(const Tensor& x, const Tensor& residual, OptionalTensor weight, OptionalTensor scale,
                              ScalarType type, double eps, bool zero_centered, std::string rung, std::string) {
  return run_added(x, residual, weight, scale, type, eps, zero_centered, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("rms_norm_fp8", TORCH_BOX(&rms_norm_fp8));
  m.impl("rms_norm_fp8.rung", TORCH_BOX(&rms_norm_fp8_rung));
  m.impl("add_rms_norm_fp8", TORCH_BOX(&add_rms_norm_fp8));
  m.impl("add_rms_norm_fp8.rung", TORCH_BOX(&add_rms_norm_fp8_rung));
}

}  // namespace
}  // namespace warpsmith
