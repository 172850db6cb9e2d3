// masked_fill: checks, allocation, the choice of the rung.
#include "transform/masked_fill/masked_fill.h"

#include <algorithm>
#include <bit>

#include "host/memory.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "masked_fill";
const Ladder<MaskedFillArgs> ladder{kOp};

uint32_t bits_of(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::f16:
      return __half_as_ushort(__float2half_rn(value));
    case Dtype::bf16:
      return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    default:
      return std::bit_cast<uint32_t>(value);
  }
}

std::optional<Tensor> run(const Call& call, const Tensor& x, const Tensor& mask, double value) {
  check_floating(kOp, "x", x);
  check_device_like(kOp, "mask", mask, x, "x");
  if (mask.scalar_type() != ScalarType::Bool) {
    fail(kOp, "expected mask to have dtype torch.bool, got ", dtype_name(mask.scalar_type()));
  }
  const int64_t rank = x.dim(), over = rank - mask.dim();
  bool fits = over >= 0;
  for (int64_t d = 0; fits && d < mask.dim(); ++d) fits = mask.size(d) == 1 || mask.size(d) == x.size(d + over);
  if (!fits) {
    fail(kOp, "expected mask to broadcast to the shape of x, ", shape_text(x.sizes()), ", got ",
         shape_text(mask.sizes()));
  }
  if (!has_kernel(call, x)) return std::nullopt;
  Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
  if (y.numel() == 0) return y;
  if (rank > kMaskDims) {
    if (call.named != nullptr) fail(kOp, "rung '", call.named->rung, "' needs at most 4 dimensions");
    return std::nullopt;
  }
  const Tensor values = dense(x);
  const bool same = mask.numel() == x.numel() && mask.is_contiguous();
  MaskedFillArgs args{
      .x = values.data_ptr(),
      .y = y.data_ptr(),
      .mask = static_cast<const uint8_t*>(mask.data_ptr()),
      .n = x.numel(),
      .sizes = {1, 1, 1, 1},
      .mask_strides = {},
      .same = same,
      .bits = bits_of(*kernel_dtype(x.scalar_type()), static_cast<float>(value)),
      .size = size_of(*kernel_dtype(x.scalar_type())),
  };
  for (int64_t d = 0; d < rank; ++d) {  // the last one first
    const int64_t of_x = rank - 1 - d, of_mask = of_x - over;
    args.sizes[d] = x.size(of_x);
    args.mask_strides[d] = of_mask >= 0 ? step(mask, of_mask) : 0;
  }
  return serve(call, args, x) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
