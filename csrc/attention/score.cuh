// What a product q k becomes before the softmax.
//
// A Score is made once a block, for one head of a sequence. `score(product, query, key)` is called for pairs that exist,
// query < m and key < n. What it returns is turned into a power of two by `factor()`: exp of a score is
// exp2(score * factor), so that a score which is only scaled costs nothing but the multiplication that exp needs anyway.
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
  float scale;

  __device__ __forceinline__ PlainScore(const AttentionArgs& a, const Sequence&, int) : scale(a.scale) {}

  __device__ __forceinline__ float factor() const { return scale * kLog2e; }
  // From what operator() returns to the score itself.
  __device__ __forceinline__ float natural() const { return scale; }
  __device__ __forceinline__ float operator()(float product, int, int) const { return product; }
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
  float scale, cap, inverse_cap, slope;
  int shift;      // of a query's number to its place
  const T* bias;  // of the head
  int64_t bias_query, bias_key;

  __device__ __forceinline__ OptionScore(const AttentionArgs& a, const Sequence& s, int head)
      : scale(a.scale),
        cap(a.score.softcap),
        inverse_cap(1.0f / a.score.softcap),
        slope(a.score.slopes == nullptr ? 0.0f : a.score.slopes[s.batch * a.score.slopes_batch + head]),
        shift(s.n - s.m),
        bias(nullptr),
        bias_query(a.score.bias_query),
        bias_key(a.score.bias_key) {
    if (a.score.bias == nullptr) return;
    bias = static_cast<const T*>(a.score.bias) + s.batch * a.score.bias_batch + head * a.score.bias_head;
  }

  __device__ __forceinline__ float factor() const { return kLog2e; }
  __device__ __forceinline__ float natural() const { return 1.0f; }

  __device__ __forceinline__ float operator()(float product, int query, int key) const {
    float score = scale * product;
    if (cap > 0.0f) score = cap * soft_tanh<sizeof(T) == 4>(score * inverse_cap);
    if (slope != 0.0f) {
      const int away = key - query - shift;
      score = fmaf(-slope, static_cast<float>(away < 0 ? -away : away), score);
    }
    if (bias != nullptr) score += to_float(bias[query * bias_query + key * bias_key]);
    return score;
  }
};

}  // namespace warpsmith
