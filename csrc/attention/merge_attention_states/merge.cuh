// The share of each of two attentions in their union.
#pragma once

#include "attention/merge_attention_states/merge_attention_states.h"
#include "device/convert.h"

namespace warpsmith {

// A query of a head.
struct Place {
  int64_t sequence, token;
  int head;
};

__device__ __forceinline__ Place place_of(int64_t row, const MergeAttentionStatesArgs& a) {
  const int64_t token = row / a.heads;
  return {token / a.m, token % a.m, static_cast<int>(row % a.heads)};
}

__device__ __forceinline__ int64_t offset_of(const HeadRows& x, const Place& at) {
  return at.sequence * x.batch + at.token * x.token + at.head * x.head;
}

__device__ __forceinline__ float* sum_of(const SumRows& x, const Place& at) {
  return x.data + at.sequence * x.batch + at.head * x.head + at.token * x.token;
}

struct Shares {
  float a, b;  // add up to 1, or are 0 where neither saw a key
  float lse;   // of the union
};

// Sums are brought to the size of the larger one first. NaN spreads.
__device__ __forceinline__ Shares shares_of(float lse_a, float lse_b) {
  const float larger = lse_a > lse_b ? lse_a : lse_b, top = larger == -INFINITY ? 0.0f : larger;
  const float a = expf(lse_a - top), b = expf(lse_b - top), sum = a + b;
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  return {a * inverse, b * inverse, top + logf(sum)};
}

// What has no share may be NaN.
__device__ __forceinline__ float merged(const Shares& share, float a, float b) {
  return (share.a == 0.0f ? 0.0f : share.a * a) + (share.b == 0.0f ? 0.0f : share.b * b);
}

template <class T, int width>
__device__ __forceinline__ void merge_values(const MergeAttentionStatesArgs& args, const Shares& share, const Place& at,
                                             int64_t column) {
  Vec<T, width> a, b, out;
  load(a, static_cast<const T*>(args.a.data) + offset_of(args.a, at) + column);
  load(b, static_cast<const T*>(args.b.data) + offset_of(args.b, at) + column);
  float wide_a[width], wide_b[width];
  to_float(wide_a, a);
  to_float(wide_b, b);
#pragma unroll
  for (int i = 0; i < width; ++i) wide_a[i] = merged(share, wide_a[i], wide_b[i]);
  from_float(out, wide_a);
  store(static_cast<T*>(args.out.data) + offset_of(args.out, at) + column, out);
}

}  // namespace warpsmith
