// Layer norm, alone and with the rstd of its rows: checks, allocation, the choice of the rung.
#include "norm/layer_norm/layer_norm.h"

#include <tuple>

#include "host/ladder.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

const Ladder<LayerNormArgs> ladder{"layer_norm"};

// Which rung and accumulator: the ladder's own choice, or what a variant names.
struct Named {
  std::string rung, accumulator;
};

Dtype accumulator_of(const char* op, const Named& named, Dtype dtype) {
  if (named.accumulator == "f32") return Dtype::f32;
  if (named.accumulator == name_of(dtype)) return dtype;
  fail(op, "no accumulator '", named.accumulator, "' for ", name_of(dtype));
}

// Fills y, and rstd where there is one; false where no rung takes the call.
bool fill(const char* op, const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
          double eps, const Named* named, Tensor& y, float* rstd) {
  const int device = x.get_device_index();
  const DeviceScope scope(device);
  Tensor input = x;
  const RowShape shape = as_rows(input);
  const std::optional<Tensor> scale = dense(weight), offset = dense(bias);
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  const std::optional<Tensor>& parameter = weight ? weight : bias;
  const LayerNormArgs args{
      .x = input.data_ptr(),
      .weight = scale ? scale->data_ptr() : nullptr,
      .bias = offset ? offset->data_ptr() : nullptr,
      .y = y.data_ptr(),
      .rstd = rstd,
      .rows = shape.rows,
      .cols = shape.cols,
      .x_stride = shape.stride,
      .eps = static_cast<float>(eps),
      .dtype = dtype,
      .weight_dtype = parameter ? *kernel_dtype(parameter->scalar_type()) : dtype,
      .accumulator = named != nullptr ? accumulator_of(op, *named, dtype) : Dtype::f32,
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (named != nullptr) {
    Ladder<LayerNormArgs>::run_named(op, named->rung, args, sm, stream);
    return true;
  }
  const Rung<LayerNormArgs>* best = Ladder<LayerNormArgs>::choose(args, sm);
  if (best != nullptr) Ladder<LayerNormArgs>::run(*best, args, stream);
  return best != nullptr;
}

// Whether the kernels know the dtype, after the checks.
bool has_kernel(const char* op, const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                const Named* named) {
  check_rows(op, x);
  if (weight) check_weight(op, *weight, x);
  if (bias) check_bias(op, *bias, weight, x);
  if (has_float_kernel(x)) return true;
  if (named != nullptr) fail(op, "no rung takes ", dtype_name(x.scalar_type()));
  return false;
}

Tensor run(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps,
           const Named* named) {
  constexpr const char* kOp = "layer_norm";
  if (has_kernel(kOp, x, weight, bias, named)) {
    Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
    if (y.numel() == 0 || fill(kOp, x, weight, bias, eps, named, y, nullptr)) return y;
  }
  return call_fallback<Tensor>("warpsmith::layer_norm", x, weight, bias, eps);
}

using WithRstd = std::tuple<Tensor, Tensor>;

WithRstd run_with_rstd(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                       double eps, const Named* named) {
  constexpr const char* kOp = "layer_norm_with_rstd";
  if (has_kernel(kOp, x, weight, bias, named)) {
    Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
    const Sizes sizes = x.sizes();
    Tensor rstd = empty_contiguous(x, Sizes(sizes.data(), sizes.size() - 1), ScalarType::Float);
    if (y.numel() == 0) {
      torch::stable::zero_(rstd);  // of rows without columns
      return {y, rstd};
    }
    if (fill(kOp, x, weight, bias, eps, named, y, static_cast<float*>(rstd.data_ptr()))) return {y, rstd};
  }
  return call_fallback<WithRstd>("warpsmith::layer_norm_with_rstd", x, weight, bias, eps);
}

Tensor layer_norm(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias, double eps) {
  return run(x, weight, bias, eps, nullptr);
}

Tensor layer_norm_rung(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias, double eps,
                       std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run(x, weight, bias, eps, &named);
}

WithRstd layer_norm_with_rstd(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias, double eps) {
  return run_with_rstd(x, weight, bias, eps, nullptr);
}

WithRstd layer_norm_with_rstd_rung(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias,
                                   double eps, std::string rung, std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run_with_rstd(x, weight, bias, eps, &named);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("layer_norm", TORCH_BOX(&layer_norm));
  m.impl("layer_norm.rung", TORCH_BOX(&layer_norm_rung));
  m.impl("layer_norm_with_rstd", TORCH_BOX(&layer_norm_with_rstd));
  m.impl("layer_norm_with_rstd.rung", TORCH_BOX(&layer_norm_with_rstd_rung));
}

}  // namespace
}  // namespace warpsmith
