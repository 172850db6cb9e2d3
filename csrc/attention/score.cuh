// What a product q k becomes before the softmax.
//
// A Score is made for one head of a sequence. `row(x, query, key)` turns products into scores, x[i] that of a query, which
// exists, and key(i); of keys from n on, which a mask hides afterwards, anything may come. `factor()` turns scores into
// powers of two, exp(score) = exp2(x factor): one that is only scaled costs nothing beyond the multiplication that exp
// needs anyway. `natural()` turns them into what users call scores.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/sequence.cuh"
#include "device/activations.h"
#include "device/convert.h"
#include "device/ptx/math.h"

namespace warpsmith {

// scale * product, for a positive scale: the largest product is the largest score.
struct PlainScore {
  const AttentionArgs& a;

  __device__ __forceinline__ PlainScore(const AttentionArgs& args, const Sequence&, int) : a(args) {}

  __device__ __forceinline__ float factor() const { return a.scale_log2; }
  __device__ __forceinline__ float natural() const { return a.scale; }

  template <int count, class Key>
  __device__ __forceinline__ void row(float (&)[count], int, Key) const {}
  // By how much a score grows with scale * product.
  __device__ __forceinline__ float growth(float) const { return 1.0f; }
};

// Within 2^-23 of tanh, which is what counts where scores of up to `cap` are cap * tanh.
template <bool exact>
__device__ __forceinline__ float soft_tanh(float x) {
  if constexpr (exact) return tanhf(x);
  return fmaf(-2.0f, ptx::reciprocal_approx(1.0f + ptx::exp2_approx(x * (2.0f * kLog2e))), 1.0f);
}

// Everything that a call may ask for; T is the type of the bias.
template <class T>
struct OptionScore {
  float scale, cap, inverse_cap;
  bool has_slopes;
  float slope;
  int shift;  // of a query's number to its place
  int last_key;
  const T* bias;  // of the head
  int64_t bias_query, bias_key;

  __device__ __forceinline__ OptionScore(const AttentionArgs& a, const Sequence& s, int head)
      : scale(a.scale),
        cap(a.score.softcap),
        inverse_cap(1.0f / a.score.softcap),
        has_slopes(a.score.slopes != nullptr),
        slope(a.score.slopes == nullptr ? 0.0f : a.score.slopes[s.batch * a.score.slopes_batch + head]),
        shift(s.n - s.m),
        last_key(s.n - 1),
        bias(nullptr),
        bias_query(a.score.bias_query),
        bias_key(a.score.bias_key) {
    if (a.score.bias == nullptr) return;
    bias = static_cast<const T*>(a.score.bias) + s.batch * a.score.bias_batch + head * a.score.bias_head;
  }

  __device__ __forceinline__ float factor() const { return kLog2e; }
  __device__ __forceinline__ float natural() const { return 1.0f; }

  // Whatever a call asks for is a loop of its own, around which all threads branch alike.
  template <int count, class Key>
  __device__ __forceinline__ void row(float (&x)[count], int query, Key key) const {
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] *= scale;
    if (cap > 0.0f) {
#pragma unroll
      for (int i = 0; i < count; ++i) x[i] = cap * soft_tanh<sizeof(T) == 4>(x[i] * inverse_cap);
    }
    if (has_slopes) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int away = key(i) - query - shift;
        x[i] = fmaf(-slope, static_cast<float>(away < 0 ? -away : away), x[i]);
      }
    }
    if (bias != nullptr) {
      const T* of_query = bias + query * bias_query;
#pragma unroll
      for (int i = 0; i < count; ++i) x[i] += to_float(of_query[min(key(i), last_key) * bias_key]);
    }
  }

  __device__ __forceinline__ float operator()(float product, int query, int key) const {
    float x[] = {product};
    row(x, query, [key](int) { return key; });
    return x[0];
  }

  __device__ __forceinline__ float growth(float product) const {
    if (!(cap > 0.0f)) return 1.0f;
    const float ratio = soft_tanh<sizeof(T) == 4>(scale * product * inverse_cap);
    return fmaf(-ratio, ratio, 1.0f);
  }
};

}  // namespace warpsmith
