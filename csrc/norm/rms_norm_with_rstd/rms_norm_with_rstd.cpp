// RMS norm with rstd: checks, allocation, the choice of the rung.
#include "norm/rms_norm_with_rstd/rms_norm_with_rstd.h"

#include <tuple>

#include "host/ladder.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "rms_norm_with_rstd";
const Ladder<RmsNormWithRstdArgs> ladder{kOp};

using WithRstd = std::tuple<Tensor, Tensor>;

WithRstd run(const Tensor& x, const std::optional<Tensor>& weight, double eps, const std::string* rung) {
  check_rows(kOp, x);
  if (weight) check_weight(kOp, *weight, x);
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<WithRstd>("warpsmith::rms_norm_with_rstd", x, weight, eps);
  }
  const Sizes sizes = x.sizes();
  Tensor y = empty_contiguous(x, sizes, x.scalar_type());
  Tensor rstd = empty_contiguous(x, Sizes(sizes.data(), sizes.size() - 1), ScalarType::Float);
  if (y.numel() == 0) {
    torch::stable::zero_(rstd);  // of rows without columns
    return {y, rstd};
  }

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  Tensor input = x;
  const RowShape shape = as_rows(input);
  const std::optional<Tensor> scale = dense(weight);
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  RmsNormWithRstdArgs args;
  static_cast<RmsNormArgs&>(args) = {
      .x = input.data_ptr(),
      .weight = scale ? scale->data_ptr() : nullptr,
      .y = y.data_ptr(),
      .rows = shape.rows,
      .cols = shape.cols,
      .x_stride = shape.stride,
      .eps = static_cast<float>(eps),
      .dtype = dtype,
      .weight_dtype = scale ? *kernel_dtype(scale->scalar_type()) : dtype,
      .accumulator = Dtype::f32,
  };
  args.rstd = static_cast<float*>(rstd.data_ptr());
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<RmsNormWithRstdArgs>::run_named(kOp, *rung, args, sm, stream);
  } else if (const auto* best = Ladder<RmsNormWithRstdArgs>::choose(args, sm)) {
    Ladder<RmsNormWithRstdArgs>::run(*best, args, stream);
  } else {
    return call_fallback<WithRstd>("warpsmith::rms_norm_with_rstd", x, weight, eps);
  }
  return {y, rstd};
}

WithRstd rms_norm_with_rstd(const Tensor& x, std::optional<Tensor> weight, double eps) {
  return run(x, weight, eps, nullptr);
}

WithRstd rms_norm_with_rstd_rung(const Tensor& x, std::optional<Tensor> weight, double eps, std::string rung,
                                 std::string) {
  return run(x, weight, eps, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("rms_norm_with_rstd", TORCH_BOX(&rms_norm_with_rstd));
  m.impl("rms_norm_with_rstd.rung", TORCH_BOX(&rms_norm_with_rstd_rung));
}

}  // namespace
}  // namespace warpsmith
