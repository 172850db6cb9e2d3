// Appending keys and values to a cache: checks, the choice of the rung.
#include "attention/store_kv/store_kv.h"

#include "attention/cache_operands.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "store_kv";
const Ladder<StoreKvArgs> ladder{kOp};

void check(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const OptionalTensor& slots,
           const OptionalTensor& lengths, const OptionalTensor& table, const OptionalTensor& k_scale,
           const OptionalTensor& v_scale) {
  check_wide_floating(kOp, "k", k);
  check_heads(kOp, "k", k);
  check_device_like(kOp, "v", v, k, "k");
  if (v.scalar_type() != k.scalar_type()) {
    fail(kOp, "expected v to have dtype ", dtype_name(k.scalar_type()), " like k, got ", dtype_name(v.scalar_type()));
  }
  if (v.dim() != 4 || v.size(0) != k.size(0) || v.size(1) != k.size(1) || v.size(2) != k.size(2)) {
    fail(kOp, "expected v to have the batch, tokens and heads of k, ", shape_text(k.sizes()), ", got ",
         shape_text(v.sizes()));
  }
  check_caches(kOp, k_cache, v_cache, k, "k");
  check_shape(kOp, "k_cache", k_cache, {k_cache.size(0), k_cache.size(1), k.size(2), k.size(3)});
  check_shape(kOp, "v_cache", v_cache, {k_cache.size(0), k_cache.size(1), k.size(2), v.size(3)});
  check_cache_scales(kOp, k_scale, v_scale, k_cache, k, "k");
  if (slots.has_value() == lengths.has_value()) fail(kOp, "expected either slots or lengths");
  if (lengths) return check_sequences(kOp, *lengths, table, k_cache, k, "k");
  check_device_like(kOp, "slots", *slots, k, "k");
  check_dtype(kOp, "slots", *slots, ScalarType::Long);
  check_shape(kOp, "slots", *slots, {k.size(0), k.size(1)});
  if (table) fail(kOp, "expected no block_table beside slots");
}

bool run(const Call& call, const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
         const OptionalTensor& slots, const OptionalTensor& lengths, const OptionalTensor& block_table,
         const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
  check(k, v, k_cache, v_cache, slots, lengths, block_table, k_scale, v_scale);
  if (!has_kernel(call, k)) return false;
  if (k.numel() == 0 && v.numel() == 0) return true;
  const bool takes = has_unit_heads(k_cache) && has_unit_heads(v_cache) && is_countable(k_cache, block_table);
  if (!takes) {
    if (call.named != nullptr) {
      fail(kOp, "rung '", call.named->rung, "' needs caches of less than 2^30 tokens, and heads without gaps");
    }
    return false;
  }
  // alive until the launch
  const Tensor keys = with_unit_heads(k), values = with_unit_heads(v);
  const OptionalTensor at = dense(slots), held = dense(lengths), table = dense(block_table), of_k = dense(k_scale),
                       of_v = dense(v_scale);
  const StoreKvArgs args{
      .k = head_rows(keys),
      .v = head_rows(values),
      .k_cache = head_rows(k_cache),
      .v_cache = head_rows(v_cache),
      .slots = at ? static_cast<const int64_t*>(at->data_ptr()) : nullptr,
      .lengths = held ? static_cast<const int32_t*>(held->data_ptr()) : nullptr,
      .pages = pages_of(k_cache, table),
      .k_scale = scale_of(of_k),
      .v_scale = scale_of(of_v),
      .scale_step_k = of_k && of_k->dim() == 1 ? 1 : 0,
      .scale_step_v = of_v && of_v->dim() == 1 ? 1 : 0,
      .batch = static_cast<int>(k.size(0)),
      .m = static_cast<int>(k.size(1)),
      .heads = static_cast<int>(k.size(2)),
      .d = static_cast<int>(k.size(3)),
      .dv = static_cast<int>(v.size(3)),
      .dtype = *kernel_dtype(k.scalar_type()),
      .cache_dtype = *kernel_dtype(k_cache.scalar_type()),
  };
  return serve(call, args, k);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
