// pack_qkv: checks, allocation, the choice of the rung.
#include "transform/pack_qkv/pack_qkv.h"

#include <optional>

#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "pack_qkv";
const Ladder<PackQkvArgs> ladder{kOp};

void check(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_floating(kOp, "q", q);
  if (q.dim() != 4) fail(kOp, "expected q to have shape (b, heads, s, d), got ", shape_text(q.sizes()));
  check_device_like(kOp, "k", k, q, "q");
  if (k.scalar_type() != q.scalar_type()) {
    fail(kOp, "expected k to have dtype ", dtype_name(q.scalar_type()), " like q, got ", dtype_name(k.scalar_type()));
  }
  if (k.dim() != 4 || k.size(0) != q.size(0) || k.size(2) != q.size(2) || k.size(3) != q.size(3)) {
    fail(kOp, "expected k to have shape (", std::to_string(q.size(0)), ", kv_heads, ", std::to_string(q.size(2)), ", ",
         std::to_string(q.size(3)), ") like q, got ", shape_text(k.sizes()));
  }
  check_like(kOp, "v", v, k, "k");
}

std::optional<Tensor> run(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(q, k, v);
  if (!has_kernel(call, q)) return std::nullopt;
  const int64_t heads = q.size(1), kv_heads = k.size(1), d = q.size(3);
  const int64_t shape[] = {q.size(0), q.size(2), (heads + 2 * kv_heads) * d};
  Tensor x = empty_contiguous(q, Sizes(shape, 3), q.scalar_type());
  if (x.numel() == 0) return x;
  const Tensor dense_q = dense(q), dense_k = dense(k), dense_v = dense(v);
  const PackQkvArgs args{{
      .packed = x.data_ptr(),
      .bias = nullptr,
      .q = dense_q.data_ptr(),
      .k = dense_k.data_ptr(),
      .v = dense_v.data_ptr(),
      .batch = q.size(0),
      .tokens = q.size(2),
      .heads = heads,
      .kv_heads = kv_heads,
      .d = d,
      .dtype = *kernel_dtype(q.scalar_type()),
  }};
  return serve(call, args, q) ? std::optional(x) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
