// What the rungs of layer_norm share: typed arguments, and the statistics of a row in either accumulator.
//   Two passes: the mean, then the deviations from it. What the deviations add up to is what the mean was off by, and
//   corrects mean and variance.
// Chan, Golub & LeVeque 1983, "Algorithms for Computing the Sample Variance: Analysis and Recommendations".
#pragma once

#include <type_traits>

#include "host/launch.h"
#include "host/registry.h"
#include "norm/layer_norm/layer_norm.h"
#include "norm/row.cuh"

namespace warpsmith {

struct RowStats {
  float mean, rstd;
};

template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162>;

// Of x - shift, per thread or over the row.
template <class A>
struct Deviations {
  A sum = from_float<A>(0.0f), square = from_float<A>(0.0f);
};

// T: x and y. W: weight and bias.
template <class T, class W>
struct LayerNormRows {
  const T* x;       // [rows, cols], x_stride elements apart
  const W* weight;  // [cols] or null
  const W* bias;    // [cols] or null
  T* y;             // [rows, cols]
  float* rstd;      // [rows] or null
  int64_t rows, cols, x_stride;
  float eps;
  float partial_scale;  // a power of two on each thread's sums, so that a 16-bit total does not overflow
  float inverse_count;  // 1 / (cols * partial_scale)

  explicit LayerNormRows(const LayerNormArgs& a)
      : x(static_cast<const T*>(a.x)),
        weight(static_cast<const W*>(a.weight)),
        bias(static_cast<const W*>(a.bias)),
        y(static_cast<T*>(a.y)),
        rstd(a.rstd),
        rows(a.rows),
        cols(a.cols),
        x_stride(a.x_stride),
        eps(a.eps),
        partial_scale(1.0f) {
    constexpr int64_t kUnscaledCols = 1024;
    if (a.accumulator == Dtype::f16) {
      for (int64_t n = cols; n > kUnscaledCols; n = (n + 1) / 2) partial_scale *= 0.5f;
    }
    inverse_count = 1.0f / (static_cast<float>(cols) * partial_scale);
  }

  __device__ const T* x_row(int64_t row) const { return x + row * x_stride; }
  __device__ T* y_row(int64_t row) const { return y + row * cols; }

  // A thread's sum, ready to be added to those of the others.
  template <class A>
  __device__ __forceinline__ A scaled(A sum) const {
    if constexpr (std::is_same_v<A, float>) {
      return sum;
    } else {
      return __hmul(sum, from_float<A>(partial_scale));
    }
  }

  // A value on top of what becomes the mean. In f32 it is its share of the mean that is added: sums of values leave the
  // range where their mean does not.
  template <class A>
  __device__ __forceinline__ A add_value(A sum, T x) const {
    if constexpr (std::is_same_v<A, float>) {
      return fmaf(to_float(x), inverse_count, sum);
    } else {
      return __hadd(sum, x);
    }
  }

  // n of them; 16-bit accumulators take two an instruction.
  template <class A, int n>
  __device__ __forceinline__ A add_values(A sum, const Vec<T, n>& x) const {
    if constexpr (std::is_same_v<A, float>) {
      float values[n];
      to_float(values, x);
#pragma unroll
      for (int i = 0; i < n; ++i) sum = fmaf(values[i], inverse_count, sum);
      return sum;
    } else {
      using Pair = PairOf<T>;
      Pair pairs = reinterpret_cast<const Pair&>(x[0]);
#pragma unroll
      for (int i = 2; i < n; i += 2) pairs = __hadd2(pairs, reinterpret_cast<const Pair&>(x[i]));
      return __hadd(sum, __hadd(pairs.x, pairs.y));
    }
  }

  // Of what these have added up over the row, scaled.
  template <class A>
  __device__ __forceinline__ A mean_of(A sum) const {
    if constexpr (std::is_same_v<A, float>) {
      return sum;
    } else {
      return from_float<A>(to_float(sum) * inverse_count);
    }
  }

  // Of the scaled sums over the row.
  template <class A>
  __device__ __forceinline__ RowStats stats_of(A shift, const Deviations<A>& deviations) const {
    const float distance = to_float(deviations.sum) * inverse_count;
    const float variance = fmaf(-distance, distance, to_float(deviations.square) * inverse_count);
    return {to_float(shift) + distance, rsqrtf((variance < 0.0f ? 0.0f : variance) + eps)};  // NaN passes
  }

  // By one thread.
  __device__ __forceinline__ void keep(int64_t row, const RowStats& stats) const {
    if (rstd != nullptr) rstd[row] = stats.rstd;
  }

  __device__ __forceinline__ T normalise(T value, int64_t col, const RowStats& stats) const {
    const float factor = weight == nullptr ? 1.0f : to_float(weight[col]);
    const float offset = bias == nullptr ? 0.0f : to_float(bias[col]);
    return from_float<T>(fmaf((to_float(value) - stats.mean) * stats.rstd, factor, offset));
  }
};

// Calls body.template operator()<T, W, A>(), with the accumulator A: float, or T itself.
template <class Body>
void visit_accumulators(const LayerNormArgs& a, Body&& body) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    if (std::is_same_v<T, float> || a.accumulator == Dtype::f32) {
      body.template operator()<T, W, float>();
    } else {
      body.template operator()<T, W, T>();
    }
  });
}

template <class A, class T>
__device__ __forceinline__ void add_deviation(Deviations<A>& deviations, T x, A shift) {
  if constexpr (std::is_same_v<A, float>) {
    const float d = to_float(x) - shift;
    deviations.sum += d;
    deviations.square = fmaf(d, d, deviations.square);
  } else {
    const A d = __hsub(x, shift);
    deviations.sum = __hadd(deviations.sum, d);
    deviations.square = __hfma(d, d, deviations.square);
  }
}

template <class A, class T, int n>
__device__ __forceinline__ void add_deviations(Deviations<A>& deviations, const Vec<T, n>& x, A shift) {
  if constexpr (std::is_same_v<A, float>) {
    // apart first: where the mean has few digits, so have deviations, and a long sum rounds all their squares one way
    Deviations<A> own;
#pragma unroll
    for (int i = 0; i < n; ++i) add_deviation(own, x[i], shift);
    deviations.sum += own.sum;
    deviations.square += own.square;
  } else {
    using Pair = PairOf<T>;
    const Pair shifts{shift, shift};
    Pair sum = __hsub2(reinterpret_cast<const Pair&>(x[0]), shifts), square = __hmul2(sum, sum);
#pragma unroll
    for (int i = 2; i < n; i += 2) {
      const Pair d = __hsub2(reinterpret_cast<const Pair&>(x[i]), shifts);
      sum = __hadd2(sum, d);
      square = __hfma2(d, d, square);
    }
    deviations.sum = __hadd(deviations.sum, __hadd(sum.x, sum.y));
    deviations.square = __hadd(deviations.square, __hadd(square.x, square.y));
  }
}

// (x - mean) * rstd * weight + bias for n neighbours.
template <class T, class W, int n>
__device__ __forceinline__ Vec<T, n> normalise(const Vec<T, n>& x, const RowStats& stats,
                                               const WeightPack<W, n>& weight, const WeightPack<W, n>& bias) {
  float values[n], factors[n], offsets[n];
  to_float(values, x);
  weight.to_floats(factors);
  bias.to_floats(offsets);
#pragma unroll
  for (int i = 0; i < n; ++i) values[i] = fmaf((values[i] - stats.mean) * stats.rstd, factors[i], offsets[i]);
  Vec<T, n> y;
  from_float(y, values);
  return y;
}

// The deviations of every thread, over the block; every thread gets them. `partial` is not in use.
template <class A, class Rows>
__device__ __forceinline__ Deviations<A> block_sum(const Deviations<A>& own, const Rows& v, A (&partial)[2][kWarp]) {
  return {block_sum(v.scaled(own.sum), partial[0]), block_sum(v.scaled(own.square), partial[1])};
}

}  // namespace warpsmith
