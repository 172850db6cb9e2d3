// upsample_nearest2d_backward: checks, layout, allocation, the choice of the rung.
#include "vision/upsample_nearest2d/backward/upsample_nearest2d_backward.h"

#include <optional>
#include <vector>

#include "vision/upsample_nearest2d/layout.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "upsample_nearest2d_backward";
const Ladder<UpsampleBackwardArgs> ladder{"upsample_nearest2d/backward"};

std::optional<Tensor> run(const Call& call, const Tensor& grad, std::vector<int64_t> size, double factor_h,
                          double factor_w) {
  check_floating(kOp, "grad", grad);
  check_images(kOp, "grad", grad);
  check_sizes(kOp, "size", size);
  if (!has_kernel(call, grad)) return std::nullopt;
  Tensor dx = empty_image(grad, size[0], size[1]);
  if (dx.numel() == 0) return dx;
  const bool last = has_channels_last(grad);
  const Tensor images = last ? grad : dense(grad);
  const int64_t n = grad.size(0), c = grad.size(1), out_h = grad.size(2), out_w = grad.size(3);
  const UpsampleBackwardArgs args{{
      .from = images.data_ptr(),
      .to = dx.data_ptr(),
      .outer = last ? n : n * c,
      .h = size[0],
      .w = size[1],
      .inner = last ? c : 1,
      .out_h = out_h,
      .out_w = out_w,
      .scale_h = upsample_scale(factor_h, size[0], out_h),
      .scale_w = upsample_scale(factor_w, size[1], out_w),
      .dtype = *kernel_dtype(grad.scalar_type()),
  }};
  return serve(call, args, grad) ? std::optional(dx) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
