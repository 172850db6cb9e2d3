// Tensors of a call as kernels of attention want them: what the bindings of the family share.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/checks.h"
#include "host/tensor.h"

namespace warpsmith {

// [batch, tokens, heads, d], or [tokens, heads, d] of sequences that lie one behind the other.
inline HeadRows head_rows(const Tensor& x) {
  const Sizes strides = x.strides(), sizes = x.sizes();
  const size_t last = strides.size() - 1;
  // Where there is one only, a stride is never walked, and says nothing about alignment.
  const auto walked = [&](size_t i) { return sizes[i] > 1 ? strides[i] : 0; };
  return {x.data_ptr(), last == 3 ? walked(0) : 0, walked(last - 2), walked(last - 1)};
}

// Whether every row of heads starts at a multiple of 16 bytes.
inline bool in_packs(const HeadRows& x, int size) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.batch * size % 16 == 0 && x.token * size % 16 == 0 &&
         x.head * size % 16 == 0;
}

// A contiguous copy takes the place of `x` where its heads have gaps between their values, or could start at a multiple of
// 16 bytes and do not, or where tokens lie megabytes apart: next to what attention computes of them, a copy is cheap.
inline HeadRows as_head_rows(Tensor& x) {
  const int64_t last = x.dim() - 1, size = size_of(*kernel_dtype(x.scalar_type()));
  const bool unit = x.stride(last) == 1 || x.size(last) == 1, could = x.size(last) * size % 16 == 0;
  HeadRows rows = head_rows(x);
  const bool near = rows.token <= kMostTokenStride;
  if (unit && near && (!could || in_packs(rows, static_cast<int>(size)))) return rows;
  // A contiguous tensor may begin anywhere, and would not be copied by PyTorch's `contiguous`.
  Tensor copy = empty_contiguous(x, x.sizes(), x.scalar_type());
  torch::stable::copy_(copy, x);
  x = copy;
  return head_rows(x);
}

// Of q's shape with values of dv, without gaps, its dimensions in the order that those of q have in memory.
inline Tensor empty_out(const Tensor& q, int64_t dv) {
  const Sizes q_sizes = q.sizes(), q_strides = q.strides();
  const size_t rank = q_sizes.size();
  std::vector<int64_t> sizes(q_sizes.begin(), q_sizes.end()), strides(rank, 1);
  sizes[rank - 1] = dv;
  std::vector<size_t> order;
  bool walks = true;
  for (size_t i = 0; i < rank; ++i) walks = walks && (q_sizes[i] <= 1 || q_strides[i] > 0);
  for (size_t i = 0; i + 1 < rank; ++i) order.push_back(i);
  if (walks) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return q_strides[a] > q_strides[b]; });
  }
  int64_t stride = std::max<int64_t>(dv, 1);
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(q_sizes[order[i]], 1);
  }
  return empty_strided(q, Sizes(sizes.data(), rank), Sizes(strides.data(), rank), q.scalar_type());
}

inline bool has_values(const Tensor& x) { return x.numel() > 0; }

inline bool has_values(const OptionalTensor& x) { return x && has_values(*x); }

// Whether a call has something to return. Where it has not, no rung is asked; where it has, the one that it names is, even if
// there is nothing to launch.
template <class... Outputs>
bool has_values(const std::tuple<Outputs...>& outputs) {
  return std::apply([](const auto&... output) { return (has_values(output) || ...); }, outputs);
}

// The strides with which a tensor is broadcast to four dimensions.
inline std::array<int64_t, 4> broadcast_strides(const Tensor& x) {
  std::array<int64_t, 4> strides = {};
  const size_t rank = x.sizes().size();
  for (size_t i = 0; i < rank; ++i) strides[4 - rank + i] = x.sizes()[i] > 1 ? x.strides()[i] : 0;
  return strides;
}

// What options point to, where a copy had to be made of it: lives as long as the launch.
struct OptionCopies {
  OptionalTensor alibi_slopes, sinks, q_documents, k_documents, tree, gate;
};

// Fills in what `o` says. Sizes and `dtype` are there already.
inline void set_options(AttentionArgs& a, OptionCopies& copies, const AttentionOptions& o) {
  const auto side = [](int64_t tokens) {
    return static_cast<int>(tokens < 0 ? kUnlimited : std::min<int64_t>(tokens, kUnlimited));
  };
  a.scale = static_cast<float>(o.scale);
  a.scale_log2 = static_cast<float>(o.scale * 1.4426950408889634);
  a.left = side(o.window_left);
  a.right = o.causal ? 0 : side(o.window_right);
  a.score.softcap = static_cast<float>(o.softcap);
  if (o.alibi_slopes) {
    copies.alibi_slopes = dense(*o.alibi_slopes);
    a.score.slopes = static_cast<const float*>(copies.alibi_slopes->data_ptr());
    a.score.slopes_batch = o.alibi_slopes->dim() == 2 ? a.q_heads : 0;
  }
  if (o.bias) {
    const auto strides = broadcast_strides(*o.bias);
    a.score.bias = o.bias->data_ptr();
    a.score.bias_batch = strides[0], a.score.bias_head = strides[1];
    a.score.bias_query = strides[2], a.score.bias_key = strides[3];
  }
  if (o.mask) {
    const auto strides = broadcast_strides(*o.mask);
    a.mask.mask = static_cast<const uint8_t*>(o.mask->data_ptr());
    a.mask.mask_batch = strides[0], a.mask.mask_head = strides[1];
    a.mask.mask_query = strides[2], a.mask.mask_key = strides[3];
  }
  if (o.q_documents) {
    copies.q_documents = dense(*o.q_documents);
    copies.k_documents = dense(*o.k_documents);
    a.mask.q_documents = static_cast<const int32_t*>(copies.q_documents->data_ptr());
    a.mask.k_documents = static_cast<const int32_t*>(copies.k_documents->data_ptr());
  }
  if (o.tree) {
    copies.tree = dense(*o.tree);
    a.mask.tree = static_cast<const int64_t*>(copies.tree->data_ptr());
  }
  if (o.sinks) {
    copies.sinks = dense(*o.sinks);
    a.sinks = static_cast<const float*>(copies.sinks->data_ptr());
  }
  if (o.gate) {
    copies.gate = *o.gate;
    a.gate = as_head_rows(*copies.gate);
  }
  a.dropout = Dropout(o.dropout_p, o.seed, o.offset);
  const bool scored = o.softcap > 0.0 || o.alibi_slopes || o.bias, masked = o.mask || o.q_documents || o.tree;
  // A scale that is not positive turns the order of scores around, which the plain instances rely on.
  a.has_options = scored || masked || o.sinks || o.gate || o.dropout_p > 0.0 || !(o.scale > 0.0);
}

}  // namespace warpsmith
