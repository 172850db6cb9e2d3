// RMS norm: checks, allocation, the choice of the rung.
#include "norm/rms_norm/rms_norm.h"

#include "host/ladder.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "rms_norm";
const Ladder<RmsNormArgs> ladder{kOp};

// Which rung and accumulator: the ladder's own choice, or what a variant names.
struct Named {
  std::string rung, accumulator;
};

Dtype accumulator_of(const Named& named, Dtype dtype) {
  if (named.accumulator == "f32") return Dtype::f32;
  if (named.accumulator == name_of(dtype)) return dtype;
  fail(kOp, "no accumulator '", named.accumulator, "' for ", name_of(dtype));
}

Tensor run(const Tensor& x, const std::optional<Tensor>& weight, double eps, const Named* named) {
  check_rows(kOp, x);
  if (weight) check_weight(kOp, *weight, x);
  if (!has_float_kernel(x)) {
    if (named != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>("warpsmith::rms_norm", x, weight, eps);
  }
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (y.numel() == 0) return y;

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  Tensor input = x;
  const RowShape shape = as_rows(input);
  std::optional<Tensor> scale = weight;
  if (scale && !scale->is_contiguous()) scale = torch::stable::contiguous(*scale);
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  const RmsNormArgs args{
      .x = input.data_ptr(),
      .weight = scale ? scale->data_ptr() : nullptr,
      .y = y.data_ptr(),
      .rows = shape.rows,
      .cols = shape.cols,
      .x_stride = shape.stride,
      .eps = static_cast<float>(eps),
      .dtype = dtype,
      .weight_dtype = scale ? *kernel_dtype(scale->scalar_type()) : dtype,
      .accumulator = named != nullptr ? accumulator_of(*named, dtype) : Dtype::f32,
  };
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (named != nullptr) {
    Ladder<RmsNormArgs>::run_named(kOp, named->rung, args, sm, stream);
  } else {
    const Rung<RmsNormArgs>* best = Ladder<RmsNormArgs>::choose(args, sm);
    if (best == nullptr) return call_fallback<Tensor>("warpsmith::rms_norm", x, weight, eps);
    Ladder<RmsNormArgs>::run(*best, args, stream);
  }
  return y;
}

Tensor rms_norm(const Tensor& x, std::optional<Tensor> weight, double eps) { return run(x, weight, eps, nullptr); }

Tensor rms_norm_rung(const Tensor& x, std::optional<Tensor> weight, double eps, std::string rung,
                     std::string accumulator) {
  const Named named{std::move(rung), std::move(accumulator)};
  return run(x, weight, eps, &named);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
  m.impl("rms_norm.rung", TORCH_BOX(&rms_norm_rung));
}

}  // namespace
}  // namespace warpsmith
