// Caches of keys and values as bindings get them: checks, in the words of kernels/warpsmith/attention/cache_checks.py, and
// how they lie.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>
#include <string_view>

#include "attention/operands.h"
#include "attention/pages.h"
#include "host/checks.h"

namespace warpsmith {

inline void check_heads(std::string_view op, std::string_view name, const Tensor& x) {
  if (x.dim() == 4) return;
  fail(op, "expected ", name, " to have shape [batch, tokens, heads, d], got ", shape_text(x.sizes()));
}

inline void check_dtype(std::string_view op, std::string_view name, const Tensor& x, ScalarType type) {
  if (x.scalar_type() == type) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(type), ", got ", dtype_name(x.scalar_type()));
}

inline void check_shape(std::string_view op, std::string_view name, const Tensor& x,
                        std::initializer_list<int64_t> shape) {
  const Sizes sizes = x.sizes(), wanted(shape.begin(), shape.size());
  if (sizes.size() == wanted.size() && std::equal(sizes.begin(), sizes.end(), wanted.begin())) return;
  fail(op, "expected ", name, " to have shape ", shape_text(wanted), ", got ", shape_text(sizes));
}

// Both caches beside `like` of name `like_name`, f32 or of 16 bits; `heads` 0: any number.
inline void check_caches(std::string_view op, const Tensor& k_cache, const Tensor& v_cache, const Tensor& like,
                         std::string_view like_name) {
  check_device_like(op, "k_cache", k_cache, like, like_name);
  if (k_cache.scalar_type() != like.scalar_type() && k_cache.scalar_type() != ScalarType::Float8_e4m3fn) {
    fail(op, "expected k_cache to have dtype ", dtype_name(like.scalar_type()), " like ", like_name,
         ", or torch.float8_e4m3fn, got ", dtype_name(k_cache.scalar_type()));
  }
  if (k_cache.dim() != 4 || k_cache.size(1) == 0) {
    fail(op, "expected k_cache to have shape [pages, tokens of a page, heads, d], got ", shape_text(k_cache.sizes()));
  }
  check_device_like(op, "v_cache", v_cache, like, like_name);
  if (v_cache.scalar_type() != k_cache.scalar_type()) {
    fail(op, "expected v_cache to have dtype ", dtype_name(k_cache.scalar_type()), " like k_cache, got ",
         dtype_name(v_cache.scalar_type()));
  }
  const bool beside = v_cache.dim() == 4 && v_cache.size(0) == k_cache.size(0) && v_cache.size(1) == k_cache.size(1) &&
                      v_cache.size(2) == k_cache.size(2);
  if (!beside) {
    fail(op, "expected v_cache to have the pages, tokens and heads of k_cache, ", shape_text(k_cache.sizes()), ", got ",
         shape_text(v_cache.sizes()));
  }
}

// The scales of a cache in e4m3, which has both; another has none.
inline void check_cache_scales(std::string_view op, const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                               const Tensor& k_cache, const Tensor& like, std::string_view like_name) {
  const bool scaled = k_cache.scalar_type() == ScalarType::Float8_e4m3fn;
  if (k_scale.has_value() != scaled || v_scale.has_value() != scaled) {
    fail(op, scaled ? "expected k_scale and v_scale beside caches in e4m3"
                    : "expected no k_scale or v_scale beside caches that are not in e4m3");
  }
  if (!scaled) return;
  const ScalarType wide = like.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  for (const auto& [name, scale] : {std::pair("k_scale", &*k_scale), std::pair("v_scale", &*v_scale)}) {
    check_device_like(op, name, *scale, like, like_name);
    check_dtype(op, name, *scale, wide);
    const int64_t heads = k_cache.size(2);
    if (scale->dim() != 0 && !(scale->dim() == 1 && scale->size(0) == heads)) {
      fail(op, "expected ", name, " to have shape () or (", std::to_string(heads),
           ",), one value per head of keys, got ", shape_text(scale->sizes()));
    }
  }
}

// Tokens of sequences, and the pages that they have.
inline void check_sequences(std::string_view op, const Tensor& lengths, const OptionalTensor& table,
                            const Tensor& k_cache, const Tensor& like, std::string_view like_name) {
  const int64_t batch = like.size(0);
  check_device_like(op, "lengths", lengths, like, like_name);
  check_dtype(op, "lengths", lengths, ScalarType::Int);
  check_shape(op, "lengths", lengths, {batch});
  if (!table) {
    if (k_cache.size(0) == batch) return;
    fail(op, "expected k_cache to have ", std::to_string(batch),
         " pages, one a sequence where there is no block_table, ", "got shape ", shape_text(k_cache.sizes()));
  }
  check_device_like(op, "block_table", *table, like, like_name);
  check_dtype(op, "block_table", *table, ScalarType::Int);
  if (table->dim() != 2 || table->size(0) != batch) {
    fail(op, "expected block_table to have shape (", std::to_string(batch), ", pages), got ",
         shape_text(table->sizes()));
  }
}

// Whether the values of a head are contiguous, as kernels need them.
inline bool has_unit_heads(const Tensor& x) { return x.size(3) <= 1 || x.stride(3) == 1; }

inline Tensor with_unit_heads(const Tensor& x) { return has_unit_heads(x) ? x : torch::stable::contiguous(x); }

// `table`: with contiguous columns, or none.
inline Pages pages_of(const Tensor& k_cache, const OptionalTensor& table) {
  return {.table = table ? static_cast<const int32_t*>(table->data_ptr()) : nullptr,
          .table_stride = table && table->size(0) > 1 ? table->stride(0) : 0,
          .width = table ? static_cast<int>(table->size(1)) : 1,
          .count = static_cast<int>(k_cache.size(0)),
          .tokens = static_cast<int>(k_cache.size(1)),
          .by_tokens = FastDivide(static_cast<uint64_t>(k_cache.size(1)))};
}

// Whether kernels count the tokens of a cache in 32 bits.
inline bool is_countable(const Tensor& k_cache, const OptionalTensor& table) {
  const int64_t pages = k_cache.size(0), tokens = k_cache.size(1), width = table ? table->size(1) : 1;
  return pages < kMostTokens && tokens < kMostTokens && width < kMostTokens && width * tokens < kMostTokens;
}

inline const float* scale_of(const OptionalTensor& scale) {
  return scale ? static_cast<const float*>(scale->data_ptr()) : nullptr;
}

}  // namespace warpsmith
