// unpack_qkv: checks, allocation, the choice of the rung.
#include "transform/unpack_qkv/unpack_qkv.h"

#include <optional>
#include <tuple>

#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "unpack_qkv";
const Ladder<UnpackQkvArgs> ladder{kOp};

using Outputs = std::tuple<Tensor, Tensor, Tensor>;  // q, k, v

Tensor empty_heads(const Tensor& x, int64_t heads, int64_t d) {
  const int64_t shape[] = {x.size(0), heads, x.size(1), d};
  return empty_contiguous(x, Sizes(shape, 4), x.scalar_type());
}

std::optional<Outputs> run(const Call& call, const Tensor& x, int64_t heads, int64_t kv_heads,
                           const std::optional<Tensor>& bias) {
  check_floating(kOp, "x", x);
  if (x.dim() != 3) fail(kOp, "expected x to have shape (b, s, n), got ", shape_text(x.sizes()));
  if (heads < 1 || kv_heads < 1) {
    fail(kOp, "expected heads and kv_heads to be at least 1, got ", std::to_string(heads), " and ",
         std::to_string(kv_heads));
  }
  const int64_t cols = x.size(2);
  if (heads > cols || kv_heads > cols || cols % (heads + 2 * kv_heads) != 0) {
    fail(kOp, "expected the last dimension of x to be whole heads, ", std::to_string(heads), " of queries and twice ",
         std::to_string(kv_heads), ", got ", std::to_string(cols));
  }
  if (bias) {
    check_same_device(kOp, "bias", *bias, x);
    check_same_dtype(kOp, "bias", *bias, x);
    if (bias->dim() != 1 || bias->size(0) != cols) {
      fail(kOp, "expected bias to have shape (", std::to_string(cols), ",), the last dimension of x, got ",
           shape_text(bias->sizes()));
    }
  }
  if (!has_kernel(call, x)) return std::nullopt;
  const int64_t d = cols / (heads + 2 * kv_heads);
  const Outputs out{empty_heads(x, heads, d), empty_heads(x, kv_heads, d), empty_heads(x, kv_heads, d)};
  if (x.numel() == 0) return out;
  const Tensor packed = dense(x);
  const std::optional<Tensor> dense_bias = dense(bias);
  const UnpackQkvArgs args{{
      .packed = packed.data_ptr(),
      .bias = dense_bias ? dense_bias->data_ptr() : nullptr,
      .q = std::get<0>(out).data_ptr(),
      .k = std::get<1>(out).data_ptr(),
      .v = std::get<2>(out).data_ptr(),
      .batch = x.size(0),
      .tokens = x.size(1),
      .heads = heads,
      .kv_heads = kv_heads,
      .d = d,
      .dtype = *kernel_dtype(x.scalar_type()),
  }};
  return serve(call, args, x) ? std::optional(out) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
