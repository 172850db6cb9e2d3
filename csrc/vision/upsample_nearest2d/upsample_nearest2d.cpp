// upsample_nearest2d: checks, layout, allocation, the choice of the rung.
#include "vision/upsample_nearest2d/upsample_nearest2d.h"

#include <optional>
#include <vector>

#include "vision/upsample_nearest2d/layout.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "upsample_nearest2d_forward";
const Ladder<UpsampleArgs> ladder{"upsample_nearest2d"};

std::optional<Tensor> run(const Call& call, const Tensor& x, std::vector<int64_t> size, double factor_h,
                          double factor_w) {
  check_images(kOp, "x", x);
  check_sizes(kOp, "size", size);
  if (!has_kernel(call, x, kernel_dtype(x.scalar_type()).has_value())) return std::nullopt;
  Tensor y = empty_image(x, size[0], size[1]);
  if (y.numel() == 0) return y;
  const bool last = has_channels_last(x);
  const Tensor images = last ? x : dense(x);
  const int64_t n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  const UpsampleArgs args{
      .from = images.data_ptr(),
      .to = y.data_ptr(),
      .outer = last ? n : n * c,
      .h = h,
      .w = w,
      .inner = last ? c : 1,
      .out_h = size[0],
      .out_w = size[1],
      .scale_h = upsample_scale(factor_h, h, size[0]),
      .scale_w = upsample_scale(factor_w, w, size[1]),
      .dtype = *kernel_dtype(x.scalar_type()),
  };
  return serve(call, args, x) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
