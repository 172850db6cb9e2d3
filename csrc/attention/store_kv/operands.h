// Tokens and caches as bindings that store get them, checked in the words of kernels/warpsmith/attention/store_kv.py.
#pragma once

#include <string_view>
#include <utility>

#include "attention/cache_operands.h"
#include "attention/store_kv/store_kv.h"
#include "host/memory.h"
#include "host/share_memory.h"

namespace warpsmith {

struct StoreOperands {
  const Tensor &k, &v, &k_cache, &v_cache;
  const OptionalTensor &slots, &lengths, &block_table, &k_scale, &v_scale;
};

// What is read while caches are written. One in e4m3 is no view of what is stored.
inline void check_apart_from_caches(std::string_view op, std::string_view name, const Tensor& x, const Tensor& k_cache,
                                    const Tensor& v_cache) {
  for (const auto& [cache_name, cache] : {std::pair("k_cache", &k_cache), std::pair("v_cache", &v_cache)}) {
    if (x.scalar_type() == cache->scalar_type()) check_own_memory(op, cache_name, *cache, name, x);
  }
}

inline void check_store(std::string_view op, const StoreOperands& o) {
  const Tensor &k = o.k, &v = o.v, &k_cache = o.k_cache, &v_cache = o.v_cache;
  check_wide_floating(op, "k", k);
  check_heads(op, "k", k);
  check_device_like(op, "v", v, k, "k");
  if (v.scalar_type() != k.scalar_type()) {
    fail(op, "expected v to have dtype ", dtype_name(k.scalar_type()), " like k, got ", dtype_name(v.scalar_type()));
  }
  if (v.dim() != 4 || v.size(0) != k.size(0) || v.size(1) != k.size(1) || v.size(2) != k.size(2)) {
    fail(op, "expected v to have the batch, tokens and heads of k, ", shape_text(k.sizes()), ", got ",
         shape_text(v.sizes()));
  }
  check_caches(op, k_cache, v_cache, k, "k");
  check_shape(op, "k_cache", k_cache, {k_cache.size(0), k_cache.size(1), k.size(2), k.size(3)});
  check_shape(op, "v_cache", v_cache, {k_cache.size(0), k_cache.size(1), k.size(2), v.size(3)});
  check_apart(op, "k_cache", k_cache);
  check_apart(op, "v_cache", v_cache);
  check_own_memory(op, "k_cache", k_cache, "v_cache", v_cache);
  check_apart_from_caches(op, "k", k, k_cache, v_cache);
  check_apart_from_caches(op, "v", v, k_cache, v_cache);
  check_cache_scales(op, o.k_scale, o.v_scale, k_cache, k, "k");
  if (o.slots.has_value() == o.lengths.has_value()) fail(op, "expected either slots or lengths");
  if (o.lengths) return check_sequences(op, *o.lengths, o.block_table, k_cache, k, "k");
  check_device_like(op, "slots", *o.slots, k, "k");
  check_dtype(op, "slots", *o.slots, ScalarType::Long);
  check_shape(op, "slots", *o.slots, {k.size(0), k.size(1)});
  if (o.block_table) fail(op, "expected no block_table beside slots");
}

inline bool is_storable(const StoreOperands& o) {
  return has_unit_heads(o.k_cache) && has_unit_heads(o.v_cache) && is_countable(o.k_cache, o.block_table);
}

// Alive until the launch.
struct HeldStore {
  Tensor keys, values;
  OptionalTensor slots, lengths, table, k_scale, v_scale;

  explicit HeldStore(const StoreOperands& o)
      : keys(with_unit_heads(o.k)),
        values(with_unit_heads(o.v)),
        slots(dense(o.slots)),
        lengths(dense(o.lengths)),
        table(dense(o.block_table)),
        k_scale(dense(o.k_scale)),
        v_scale(dense(o.v_scale)) {}
};

inline StoreKvArgs store_args(const StoreOperands& o, const HeldStore& held) {
  return {
      .k = head_rows(held.keys),
      .v = head_rows(held.values),
      .k_cache = head_rows(o.k_cache),
      .v_cache = head_rows(o.v_cache),
      .slots = held.slots ? static_cast<const int64_t*>(held.slots->data_ptr()) : nullptr,
      .lengths = held.lengths ? static_cast<const int32_t*>(held.lengths->data_ptr()) : nullptr,
      .pages = pages_of(o.k_cache, held.table),
      .k_scale = scale_of(held.k_scale),
      .v_scale = scale_of(held.v_scale),
      .scale_step_k = held.k_scale && held.k_scale->dim() == 1 ? 1 : 0,
      .scale_step_v = held.v_scale && held.v_scale->dim() == 1 ? 1 : 0,
      .batch = static_cast<int>(o.k.size(0)),
      .m = static_cast<int>(o.k.size(1)),
      .heads = static_cast<int>(o.k.size(2)),
      .d = static_cast<int>(o.k.size(3)),
      .dv = static_cast<int>(o.v.size(3)),
      .dtype = *kernel_dtype(o.k.scalar_type()),
      .cache_dtype = *kernel_dtype(o.k_cache.scalar_type()),
  };
}

}  // namespace warpsmith
