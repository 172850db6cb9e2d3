// add_rms_norm and add_layer_norm: checks, allocation, the choice of the rung.
#include "norm/add_norm/add_norm.h"

#include <tuple>

#include "host/ladder.h"
#include "norm/add_norm/operands.h"

namespace warpsmith {
namespace {

const Ladder<AddNormArgs> ladder{"add_norm"};

using Outputs = std::tuple<Tensor, Tensor>;  // y, h

// Calls fallback() where no kernel takes the call.
template <class Fallback>
Outputs run(const char* op, Tensor x, OptionalTensor residual, OptionalTensor weight, OptionalTensor bias, double eps,
            bool zero_centered, bool layer, const std::string* rung, Fallback&& fallback) {
  check_add_norm(op, x, residual, weight, bias);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(op, "no rung takes ", dtype_name(x.scalar_type()));
    return fallback();
  }
  constexpr int64_t kNone = 0;
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  Tensor h = empty_contiguous(x, residual ? x.sizes() : Sizes(&kNone, 1), residual_type(x, residual));
  if (y.numel() == 0) return {y, h};

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  AddNormArgs args = add_norm_args(x, residual, weight, bias, eps, zero_centered, layer);
  args.y = y.data_ptr();
  args.h = residual ? h.data_ptr() : nullptr;
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<AddNormArgs>::run_named(op, *rung, args, sm, stream);
  } else {
    const Rung<AddNormArgs>* best = Ladder<AddNormArgs>::choose(args, sm);
    if (best == nullptr) return fallback();
    Ladder<AddNormArgs>::run(*best, args, stream);
  }
  return {y, h};
}

Outputs run_rms(const Tensor& x, const OptionalTensor& residual, const OptionalTensor& weight, double eps,
                bool zero_centered, const std::string* rung) {
  return run("add_rms_norm", x, residual, weight, std::nullopt, eps, zero_centered, /*layer=*/false, rung, [&] {
    return call_fallback<Outputs>("warpsmith::add_rms_norm", x, residual, weight, eps, zero_centered);
  });
}

Outputs run_layer(const Tensor& x, const OptionalTensor& residual, const OptionalTensor& weight,
                  const OptionalTensor& bias, double eps, bool zero_centered, const std::string* rung) {
  return run("add_layer_norm", x, residual, weight, bias, eps, zero_centered, /*layer=*/true, rung, [&] {
    return call_fallback<Outputs>("warpsmith::add_layer_norm", x, residual, weight, bias, eps, zero_centered);
  });
}

Outputs add_rms_norm(const Tensor& x, OptionalTensor residual, OptionalTensor weight, double eps, bool zero_centered) {
  return run_rms(x, residual, weight, eps, zero_centered, nullptr);
}

Outputs add_rms_norm_rung(const Tensor& x, OptionalTensor residual, OptionalTensor weight, double eps,
                          bool zero_centered, std::string rung, std::string) {
  return run_rms(x, residual, weight, eps, zero_centered, &rung);
}

Outputs add_layer_norm(const Tensor& x, OptionalTensor residual, OptionalTensor weight, OptionalTensor bias, double eps,
                       bool zero_centered) {
  return run_layer(x, residual, weight, bias, eps, zero_centered, nullptr);
}

Outputs add_layer_norm_rung(const Tensor& x, OptionalTensor residual, OptionalTensor weight, OptionalTensor bias,
                            double eps, bool zero_centered, std::string rung, std::string) {
  return run_layer(x, residual, weight, bias, eps, zero_centered, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
  m.impl("add_rms_norm.rung", TORCH_BOX(&add_rms_norm_rung));
  m.impl("add_layer_norm", TORCH_BOX(&add_layer_norm));
  m.impl("add_layer_norm.rung", TORCH_BOX(&add_layer_norm_rung));
}

}  // namespace
}  // namespace warpsmith
