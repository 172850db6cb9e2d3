// What operators of attention ask of a call, in the words of kernels/warpsmith/attention/options.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "attention/attention.h"
#include "host/checks.h"
#include "host/tensor.h"

namespace warpsmith {

using OptionalTensor = std::optional<Tensor>;

// What a call says beyond queries, keys and values.
struct AttentionOptions {
  double scale;
  bool causal;
  int64_t window_left, window_right;
  double softcap;
  const OptionalTensor &alibi_slopes, &mask, &bias, &sinks, &gate, &q_documents, &k_documents, &tree;
  double dropout_p;
  int64_t seed, offset;
};

// The sizes of a call; m and n are the tokens of a sequence, or the most of any.
struct AttentionProblem {
  int64_t batch, m, n, heads, kv_heads, d, dv;
};

inline constexpr int64_t kMostTokens = int64_t{1} << 30;  // places of keys and sides of windows are added up in 32 bits
inline constexpr int64_t kTreeKeys = 64;                  // that a word of `tree` speaks of

namespace detail {

inline std::string number_text(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", x);
  return text;
}

inline std::string shape_of(std::initializer_list<int64_t> sizes) {
  return shape_text(Sizes(sizes.begin(), sizes.size()));
}

inline bool has_shape(const Tensor& tensor, Sizes shape) {
  const Sizes sizes = tensor.sizes();
  return sizes.size() == shape.size() && std::equal(sizes.begin(), sizes.end(), shape.begin());
}

inline void check_like_q(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& q) {
  check_device_like(op, name, tensor, q, "q");
  if (tensor.scalar_type() == q.scalar_type()) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(q.scalar_type()), " like q, got ",
       dtype_name(tensor.scalar_type()));
}

inline void check_dtype(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& q,
                        ScalarType type) {
  check_device_like(op, name, tensor, q, "q");
  if (tensor.scalar_type() == type) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(type), ", got ", dtype_name(tensor.scalar_type()));
}

inline void check_shape(std::string_view op, std::string_view name, const Tensor& tensor, Sizes shape,
                        std::string_view of) {
  if (has_shape(tensor, shape)) return;
  fail(op, "expected ", name, " to have shape ", shape_text(shape), ", ", of, ", got ", shape_text(tensor.sizes()));
}

inline void check_broadcasts(std::string_view op, std::string_view name, const Tensor& tensor,
                             const AttentionProblem& p) {
  const int64_t scores[] = {p.batch, p.heads, p.m, p.n};
  const Sizes sizes = tensor.sizes();
  bool fits = sizes.size() <= 4;
  for (size_t i = 1; fits && i <= sizes.size(); ++i) {
    const int64_t size = sizes[sizes.size() - i];
    fits = size == 1 || size == scores[4 - i];
  }
  if (fits) return;
  fail(op, "expected ", name, " to be broadcastable to the shape ", shape_text(Sizes(scores, 4)),
       " of the scores, got ", shape_text(sizes));
}

}  // namespace detail

// f32, or f64 of f64.
inline ScalarType wide_type(const Tensor& q) {
  return q.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// Queries, keys and values of `rank` dimensions, the last two of which are heads and d.
inline void check_heads(std::string_view op, const Tensor& q, const Tensor& k, const Tensor& v, int64_t rank) {
  for (const auto& [name, x] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
    check_wide_floating(op, name, *x);
    if (x->dim() != rank) {
      fail(op, "expected ", name, " to have ", std::to_string(rank), " dimensions, got shape ", shape_text(x->sizes()));
    }
  }
  detail::check_like_q(op, "k", k, q);
  detail::check_like_q(op, "v", v, q);
  const int64_t last = rank - 1, d = q.size(last);
  if (d == 0) fail(op, "expected q to have heads of at least one value, got shape ", shape_text(q.sizes()));
  if ((rank == 4 && k.size(0) != q.size(0)) || k.size(last) != d) {
    fail(op, "expected k to have ", rank == 4 ? "the batch and the last dimension" : "the last dimension",
         " of q, got ", shape_text(k.sizes()), " and ", shape_text(q.sizes()));
  }
  const Sizes k_sizes = k.sizes(), v_sizes = v.sizes();
  if (!std::equal(k_sizes.begin(), k_sizes.begin() + last, v_sizes.begin())) {
    fail(op, "expected v to have the shape of k but for the last dimension, got ", shape_text(v_sizes), " and ",
         shape_text(k_sizes));
  }
  const int64_t heads = q.size(last - 1), kv_heads = k.size(last - 1);
  if (heads != 0 && (kv_heads == 0 || heads % kv_heads != 0)) {
    fail(op, "expected the heads of q to be a multiple of those of k, got ", std::to_string(heads), " and ",
         std::to_string(kv_heads));
  }
}

// Where sequences begin, and the longest of them.
inline void check_sequences(std::string_view op, const Tensor& q, const Tensor& cu_q, const Tensor& cu_k, int64_t max_q,
                            int64_t max_k) {
  for (const auto& [name, cu] : {std::pair{"cu_seqlens_q", &cu_q}, {"cu_seqlens_k", &cu_k}}) {
    detail::check_dtype(op, name, *cu, q, ScalarType::Int);
    if (cu->dim() != 1 || cu->size(0) == 0) {
      fail(op, "expected ", name, " to have shape (sequences + 1,), got ", shape_text(cu->sizes()));
    }
  }
  if (cu_q.size(0) != cu_k.size(0)) {
    fail(op, "expected as many sequences of queries as of keys, got ", std::to_string(cu_q.size(0) - 1), " and ",
         std::to_string(cu_k.size(0) - 1));
  }
  for (const auto& [name, most] : {std::pair{"max_seqlen_q", max_q}, {"max_seqlen_k", max_k}}) {
    if (most < 0) fail(op, "expected ", name, " not to be negative, got ", std::to_string(most));
  }
}

// `out`: the shape of the answer.
inline void check_options(std::string_view op, const Tensor& q, const AttentionProblem& p, Sizes out,
                          const AttentionOptions& o) {
  using detail::shape_of;
  if (std::max(p.m, p.n) >= kMostTokens) {
    fail(op, "expected fewer than 2^30 tokens in a sequence, got ", std::to_string(std::max(p.m, p.n)));
  }
  for (const auto& [name, side] : {std::pair{"window_left", o.window_left}, {"window_right", o.window_right}}) {
    if (side < -1) fail(op, "expected ", name, " to be -1 (no limit) or more, got ", std::to_string(side));
  }
  if (!(o.softcap >= 0.0)) {  // NaN neither
    fail(op, "expected softcap not to be negative, got ", detail::number_text(o.softcap));
  }
  if (o.softcap > std::numeric_limits<float>::max()) {
    fail(op, "expected softcap to be finite in float32, got ", detail::number_text(o.softcap));
  }
  if (o.alibi_slopes) {
    detail::check_dtype(op, "alibi_slopes", *o.alibi_slopes, q, wide_type(q));
    const int64_t both[] = {p.batch, p.heads};
    if (!detail::has_shape(*o.alibi_slopes, Sizes(both + 1, 1)) &&
        !detail::has_shape(*o.alibi_slopes, Sizes(both, 2))) {
      fail(op, "expected alibi_slopes to have shape ", shape_of({p.heads}), " or ", shape_of({p.batch, p.heads}),
           ", got ", shape_text(o.alibi_slopes->sizes()));
    }
  }
  if (o.mask) {
    detail::check_dtype(op, "mask", *o.mask, q, ScalarType::Bool);
    detail::check_broadcasts(op, "mask", *o.mask, p);
  }
  if (o.bias) {
    detail::check_dtype(op, "bias", *o.bias, q, q.scalar_type());
    detail::check_broadcasts(op, "bias", *o.bias, p);
  }
  if (o.sinks) {
    detail::check_dtype(op, "sinks", *o.sinks, q, wide_type(q));
    detail::check_shape(op, "sinks", *o.sinks, Sizes(&p.heads, 1), "the heads of q");
  }
  if (o.gate) {
    detail::check_like_q(op, "gate", *o.gate, q);
    detail::check_shape(op, "gate", *o.gate, out, "that of the output");
  }
  if (o.q_documents.has_value() != o.k_documents.has_value()) {
    fail(op, "expected both q_documents and k_documents or neither");
  }
  const int64_t queries[] = {p.batch, p.m}, keys[] = {p.batch, p.n};
  if (o.q_documents) {
    detail::check_dtype(op, "q_documents", *o.q_documents, q, ScalarType::Int);
    detail::check_shape(op, "q_documents", *o.q_documents, Sizes(queries, 2), "the tokens of each sequence");
    detail::check_dtype(op, "k_documents", *o.k_documents, q, ScalarType::Int);
    detail::check_shape(op, "k_documents", *o.k_documents, Sizes(keys, 2), "the tokens of each sequence");
  }
  if (o.tree) {
    detail::check_dtype(op, "tree", *o.tree, q, ScalarType::Long);
    detail::check_shape(op, "tree", *o.tree, Sizes(queries, 2), "the queries of each sequence");
    if (p.m > kTreeKeys) {
      fail(op, "expected at most ", std::to_string(kTreeKeys), " queries beside a tree, got ", std::to_string(p.m));
    }
  }
  check_share(op, "dropout_p", o.dropout_p);
}

}  // namespace warpsmith
