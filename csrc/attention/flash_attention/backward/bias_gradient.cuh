// The gradient of one score, and that of a bias: the sum of those of all scores that it was added to.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/flash_attention/backward/rows.cuh"
#include "attention/mask.cuh"
#include "attention/score.cuh"
#include "host/launch.h"

namespace warpsmith {

struct ScorePlace {
  int head, query, key;
};

struct ScoreGradient {
  float kept;        // what dropout leaves of the probability
  float of_score;    // ds
  float of_product;  // ds before the soft cap
};

// Of a score that is seen, from the products q k and go v.
template <class T>
__device__ __forceinline__ ScoreGradient gradient_of(const AttentionBackwardArgs& a, const BackwardWorkspace& w,
                                                     const GradientRows& s, const OptionScore<T>& score,
                                                     const ScorePlace& at, float product, float grad) {
  const int64_t row = at.head * a.q_rows + s.q_row + at.query;
  // Of the sum as it was given, not of its multiple by log2(e), whose rounding is as large again: of scores far from 0 the
  // difference is exact. A score of a row whose sum is 0 is -inf.
  const float lse = s.lse(a.of, at.head)[at.query], x = score(product, at.query, at.key);
  const float p = lse == -INFINITY ? 0.0f : exp2f((x - lse) * kLog2e);
  const bool kept = !a.of.dropout.active || keeps(a.of, s, at.head, at.query, at.key);
  const float keep = a.of.dropout.scale, ds = p * ((kept ? grad * keep : 0.0f) - w.dots[row]);
  return {kept ? p * keep : 0.0f, ds, ds * score.growth(product)};
}

inline constexpr int kBiasThreads = 128;

// A block has a row of the gradient, and a thread elements of it.
template <class T>
__global__ void __launch_bounds__(kBiasThreads, 1)
    flash_attention_backward_bias_kernel(const AttentionBackwardArgs a, const BackwardWorkspace w) {
  const BiasGradient& b = a.dbias;
  const int row = static_cast<int>(blockIdx.x), own_query = row % b.m, part = row / b.m;
  const int own_head = part % b.heads, own_batch = part / b.heads;
  for (int own_key = static_cast<int>(threadIdx.x); own_key < b.n; own_key += kBiasThreads) {
    // from the element's own index on in steps of the extent: all of them where it is 1
    float sum = 0.0f;
    for (int batch = own_batch; batch < a.of.batch; batch += b.batch) {
      const GradientRows s(a, batch);
      for (int head = own_head; head < a.of.q_heads; head += b.heads) {
        const OptionScore<T> score(a.of, s, head);
        const OptionMask mask(a.of, s, head);
        const int kv_head = head / (a.of.q_heads / a.of.kv_heads);
        for (int query = own_query; query < s.m; query += b.m) {
          const T* q = s.template query<const T>(a.of.q, head, query);
          const T* go = s.template query<const T>(a.grad, head, query);
          for (int key = own_key; key < s.n; key += b.n) {
            if (!mask(query, key)) continue;
            const T* k = s.template key<const T>(a.of.k, kv_head, key);
            const T* v = s.template key<const T>(a.of.v, kv_head, key);
            float product = 0.0f, grad = 0.0f;
            for (int i = 0; i < a.of.d; ++i) product = fmaf(to_float(q[i]), to_float(k[i]), product);
            for (int i = 0; i < a.of.dv; ++i) grad = fmaf(to_float(go[i]), to_float(v[i]), grad);
            sum += gradient_of(a, w, s, score, {head, query, key}, product, grad).of_score;
          }
        }
      }
    }
    static_cast<T*>(b.data)[int64_t{row} * b.n + own_key] = from_float<T>(sum);
  }
}

template <class T>
void bias_gradient(const AttentionBackwardArgs& a, const BackwardWorkspace& w, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(int64_t{a.dbias.batch} * a.dbias.heads * a.dbias.m);
  if (grid == 0) return;
  warpsmith::launch<&flash_attention_backward_bias_kernel<T>>({grid, kBiasThreads}, stream, a, w);
}

}  // namespace warpsmith
