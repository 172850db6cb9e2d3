// GEMV with 8-bit weights: checks, allocation, the choice of the rung.
#include "gemm/gemv_scaled/gemv_scaled.h"

#include "gemm/vectors.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "gemv_scaled";
const Ladder<GemvScaledArgs> ladder{kOp};

void check(const Tensor& a, const Tensor& x, const Tensor& scale) {
  if (!is_floating(a.scalar_type()) && a.scalar_type() != ScalarType::Char) {
    fail(kOp, "expected a to be a floating-point or int8 tensor, got ", dtype_name(a.scalar_type()));
  }
  check_matrix(kOp, a);
  check_device_like(kOp, "x", x, a, "a");
  check_wide_floating(kOp, "x", x);
  check_vectors(kOp, x, a);
  check_device_like(kOp, "scale", scale, a, "a");
  const ScalarType wide = x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  if (scale.scalar_type() != wide) {
    fail(kOp, "expected scale to have dtype ", dtype_name(wide), ", got ", dtype_name(scale.scalar_type()));
  }
  const bool one = scale.dim() == 0, per_row = scale.dim() == 1 && scale.size(0) == a.size(0);
  if (!one && !per_row) {
    fail(kOp, "expected scale to have shape () or (", std::to_string(a.size(0)), ",), one value per row of a, got ",
         shape_text(scale.sizes()));
  }
}

bool is_narrow(const Tensor& a, const Tensor& x) {
  const auto dtype = kernel_dtype(a.scalar_type());
  return has_float_kernel(x) && dtype && (is_fp8(*dtype) || dtype == Dtype::i8);
}

// For the rungs that cut k into slices.
int slices_of(std::string_view rung, const GemvScaledArgs& a) {
  if (rung == "split_k") return split_k_slices(a);
  if (rung == "skinny") return skinny_slices(a);
  return 1;
}

std::optional<Tensor> run(const CallInto& call, const Tensor& a, const Tensor& x, const Tensor& scale) {
  check(a, x, scale);
  if (!has_kernel(call, a, is_narrow(a, x))) return std::nullopt;
  Tensor y = product_of(call, a, x, x.scalar_type());
  if (y.numel() == 0) return y;
  const int device = a.get_device_index();
  const DeviceScope scope(device);
  if (a.size(1) == 0) {
    torch::stable::zero_(y);
    return y;
  }

  const DeviceInfo& info = device_info(device);
  const Dtype x_dtype = *kernel_dtype(x.scalar_type());
  const Tensor scales = dense(scale);
  GemvScaledArgs args{
      .call = {.a = a.data_ptr(),
               .x = nullptr,
               .y = y.data_ptr(),
               .scale = static_cast<const float*>(scales.data_ptr()),
               .partial = nullptr,
               .m = a.size(0),
               .k = a.size(1),
               .vectors = vector_count(x),
               .splits = 1,
               .a_row = a.stride(0),
               .x_row = 0,
               .y_row = a.size(0),
               .scale_step = scale.dim()},
      .a_col = a.stride(1),
      .sm_count = info.sm_count,
      .dtype = *kernel_dtype(a.scalar_type()),
      .x_dtype = x_dtype,
  };
  const Tensor values = aligned_vectors(x, x_dtype, tiles_weights(args) ? 16 / size_of(x_dtype) : 1);
  args.call.x = values.data_ptr();
  args.call.x_row = vector_stride(values);

  const Rung<GemvScaledArgs>* rung = pick(call, args, info.sm);
  if (rung == nullptr) return std::nullopt;
  const int slices = slices_of(rung->name, args);
  std::optional<Tensor> workspace;
  if (slices > 1) {
    const int64_t floats = args.call.m * args.call.vectors * slices;
    workspace = empty_contiguous(a, Sizes(&floats, 1), ScalarType::Float);
    args.call.partial = static_cast<float*>(workspace->data_ptr());
  }
  Ladder<GemvScaledArgs>::run(*rung, args, current_stream(device));
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
