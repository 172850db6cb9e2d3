// What the rungs of attention's climb ask of a call, and how they are launched.
#pragma once

#include "attention/attention.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {

inline const char* needs_plain_attention(const AttentionArgs& a) {
  return a.has_options || a.max_logits != nullptr ? "takes no options but a window" : nullptr;
}

inline const char* needs_grid_of_heads(const AttentionArgs& a) {
  constexpr int kMost = 65535;
  return a.batch <= kMost && a.q_heads <= kMost ? nullptr : "needs at most 65535 sequences and heads";
}

template <int most>
const char* needs_head_dimension(const AttentionArgs& a) {
  static constexpr detail::LimitText kText{"needs head dimensions of at most ", most, ""};
  return a.d <= most && a.dv <= most ? nullptr : kText.text;
}

inline const char* needs_16_bits(const AttentionArgs& a) {
  return a.dtype == Dtype::f32 ? "takes f16 and bf16" : nullptr;
}

inline const char* needs_packed_heads(const AttentionArgs& a) {
  return a.d % 8 == 0 && a.dv % 8 == 0 ? nullptr : "needs head dimensions that are multiples of 8";
}

template <int most>
const char* takes_heads(const AttentionArgs& a) {
  return unmet({needs_16_bits(a), needs_packed_heads(a), needs_head_dimension<most>(a), needs_plain_attention(a),
                needs_grid_of_heads(a)});
}

// Of rungs that sum scores in f32 and p v in f16, by name alone.
inline const char* needs_mixed_sums(const AttentionArgs& a) {
  return a.accumulator == Dtype::f16 ? nullptr : "sums p v in f16";
}

inline const char* takes_mixed_heads(const AttentionArgs& a) {
  return unmet({takes_heads<1024>(a), needs_mixed_sums(a)});
}

// Shorter ones fit the registers of a warp.
inline bool suits_long_heads(const AttentionArgs& a) { return a.d > 256 || a.dv > 256; }

// Calls body.template operator()<T, Acc>() for the type of the operands and that of the sums.
template <class Body>
void visit_attention_types(const AttentionArgs& a, Body&& body) {
  if (a.accumulator == Dtype::f16) return body.template operator()<f16, f16>();
  a.dtype == Dtype::f16 ? body.template operator()<f16, float>() : body.template operator()<bf16, float>();
}

// Calls body.template operator()<d>() for the first of the head dimensions that holds those of the call.
template <int first, int... others, class Body>
void visit_head_tiles(const AttentionArgs& a, Body&& body) {
  if (sizeof...(others) == 0 || (a.d <= first && a.dv <= first)) return body.template operator()<first>();
  if constexpr (sizeof...(others) > 0) visit_head_tiles<others...>(a, body);
}

}  // namespace warpsmith
