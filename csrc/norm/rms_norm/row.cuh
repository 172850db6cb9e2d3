// What the rungs of rms_norm share: typed arguments and the sum of squares in either accumulator.
#pragma once

#include <type_traits>

#include "host/launch.h"
#include "host/registry.h"
#include "norm/rms_norm/rms_norm.h"
#include "norm/row.cuh"
#include "row/registers.cuh"

namespace warpsmith {

// T: x and y. W: weight.
template <class T, class W>
struct RmsNormRows {
  const T* x;       // [rows, cols], x_stride elements apart
  const W* weight;  // [cols] or null
  T* y;             // [rows, cols]
  int64_t rows, cols, x_stride;
  float eps;
  float partial_scale;  // a power of two on each thread's sum, so that a 16-bit total does not overflow
  bool beyond_l2;       // x alone would fill L2
  float inverse_count;  // 1 / (cols * partial_scale)

  explicit RmsNormRows(const RmsNormArgs& a)
      : x(static_cast<const T*>(a.x)),
        weight(static_cast<const W*>(a.weight)),
        y(static_cast<T*>(a.y)),
        rows(a.rows),
        cols(a.cols),
        x_stride(a.x_stride),
        eps(a.eps),
        partial_scale(1.0f),
        beyond_l2(a.rows * a.cols * size_of(a.dtype) >= kL2Bytes) {
    constexpr int64_t kUnscaledCols = 1024;
    if (a.accumulator == Dtype::f16) {
      for (int64_t n = cols; n > kUnscaledCols; n = (n + 1) / 2) partial_scale *= 0.5f;
    }
    inverse_count = 1.0f / (static_cast<float>(cols) * partial_scale);
  }

  // A stream longer than L2 is read with the policy that lets the results leave first; a short one stays out of the
  // way, so that the results are found in L2 by whoever reads them next.
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ const T* x_row(int64_t row) const { return x + row * x_stride; }
  __device__ T* y_row(int64_t row) const { return y + row * cols; }
};

// The same with the accumulator A: float, or T itself.
template <class Body>
void visit_accumulators(const RmsNormArgs& a, Body&& body) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    if (std::is_same_v<T, float> || a.accumulator == Dtype::f32) {
      body.template operator()<T, W, float>();
    } else {
      body.template operator()<T, W, T>();
    }
  });
}

// sum + x^2, rounded once.
template <class A, class T>
__device__ __forceinline__ A add_square(A sum, T x) {
  if constexpr (std::is_same_v<A, float>) {
    const float value = to_float(x);
    return fmaf(value, value, sum);
  } else {
    return __hfma(x, x, sum);
  }
}

// Sum of squares of n values on top of `sum`; 16-bit accumulators take two values an instruction.
template <class A, class T, int n>
__device__ __forceinline__ A add_squares(A sum, const Vec<T, n>& x) {
  if constexpr (std::is_same_v<A, float>) {
    float values[n];
    to_float(values, x);
#pragma unroll
    for (int i = 0; i < n; ++i) sum = fmaf(values[i], values[i], sum);
    return sum;
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162>;
    Pair pairs = reinterpret_cast<const Pair&>(x[0]);
    pairs = __hmul2(pairs, pairs);
#pragma unroll
    for (int i = 2; i < n; i += 2) {
      const Pair next = reinterpret_cast<const Pair&>(x[i]);
      pairs = __hfma2(next, next, pairs);
    }
    return __hadd(sum, __hadd(pairs.x, pairs.y));
  }
}

template <class A>
__device__ __forceinline__ A scaled(A sum, float scale) {
  if constexpr (std::is_same_v<A, float>) {
    return sum;
  } else {
    return __hmul(sum, from_float<A>(scale));
  }
}

// x * scale * weight for n neighbours.
template <class T, class W, int n>
__device__ __forceinline__ Vec<T, n> normalise(const Vec<T, n>& x, float scale, const WeightPack<W, n>& weight) {
  float values[n], factors[n];
  to_float(values, x);
  weight.to_floats(factors);
#pragma unroll
  for (int i = 0; i < n; ++i) values[i] = values[i] * scale * factors[i];
  Vec<T, n> y;
  from_float(y, values);
  return y;
}

// The row-wise operator behind `registers` and `cluster`; see row/registers.cuh.
template <class T, class W>
struct RmsNorm : RmsNormRows<T, W> {
  using Value = T;
  static constexpr int kInputs = 1;
  struct Stats {
    float squares;
  };
  using Total = float;  // what a value is multiplied with
  struct Columns {
    PackedColumns<T, W> weight;
    __device__ __forceinline__ void load_from(const RmsNorm& row, int col) { weight.load_from(row.weight, col, 1.0f); }
    __device__ __forceinline__ void keep(uint32_t zero) { weight.keep(zero); }
  };
  // At most eight packs of 16-bit weights fit in registers.
  template <int packs>
  static constexpr bool kHoldsColumns = packs * sizeof(Columns) <= 8 * 16;

  using RmsNormRows<T, W>::RmsNormRows;

  __device__ static uint4 padding() { return {}; }
  __device__ const T* input(int, int64_t row) const { return this->x_row(row); }

  template <int lanes, int packs>
  __device__ __forceinline__ Stats gather(const uint4 (&x)[packs][1], int) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      float values[kPack<T>];
      unpack<T>(values, x[i][0]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) sum = fmaf(values[j], values[j], sum);
    }
    return {warp_reduce<lanes>(sum)};
  }

  __device__ __forceinline__ Stats combine(const Stats* parts, int count) const {
    const int lane = threadIdx.x % kWarp;
    float sum = 0.0f;
    for (int i = lane; i < count; i += kWarp) sum += parts[i].squares;
    return {warp_reduce(sum)};
  }

  __device__ __forceinline__ float total(const Stats& stats) const {
    return reciprocal_rms(stats.squares, this->inverse_count, this->eps);
  }

  __device__ void keep(int64_t, float) const {}
  __device__ __forceinline__ void finish(int64_t row, int col, const uint4 (&x)[1], float scale,
                                         const Columns& columns) const {
    float values[kPack<T>], weight[kPack<T>];
    unpack<T>(values, x[0]);
    columns.weight.unpack_to(weight);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) values[i] = values[i] * scale * weight[i];
    ptx::store_streaming(reinterpret_cast<uint4*>(this->y_row(row) + col), pack<T>(values));
  }
};

}  // namespace warpsmith
