// What the fused residual norms share on the device: typed arguments, the addition, and what follows a row's sums.
#pragma once

#include <type_traits>

#include "host/launch.h"
#include "host/registry.h"
#include "norm/add_norm/add_norm.h"
#include "norm/row.cuh"

namespace warpsmith {

// T: x. R: residual and h. W: weight and bias. Y: y.
template <bool layer, class T_, class R_, class W_, class Y_ = T_>
struct AddNormTypes {
  using T = T_;
  using R = R_;
  using W = W_;
  using Y = Y_;
  static constexpr bool kLayer = layer;
  // Values of a 128-bit access to the wider of x and residual; the narrower then takes a shorter one.
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(R) > sizeof(T) ? sizeof(R) : sizeof(T));
  // What nearly every call looks like: worth more code.
  static constexpr bool kCommon = std::is_same_v<T, R> && std::is_same_v<T, W> && std::is_same_v<T, Y>;
};

template <class Types>
struct AddNormRows : Types {
  using typename Types::R;
  using typename Types::T;
  using typename Types::W;
  using typename Types::Y;

  const T* x;         // [rows, cols], x_stride elements apart
  const R* residual;  // [rows, cols], residual_stride elements apart; null for zeros
  const W* weight;    // [cols] or null
  const W* bias;      // [cols] or null
  Y* y;               // [rows, cols]
  R* h;               // [rows, cols], null where it would be x
  int64_t rows, cols, x_stride, residual_stride;
  float eps, weight_offset;
  float inverse_count;  // 1 / cols
  bool beyond_l2;       // the inputs alone would fill L2

  explicit AddNormRows(const AddNormArgs& a)
      : x(static_cast<const T*>(a.x)),
        residual(static_cast<const R*>(a.residual)),
        weight(static_cast<const W*>(a.weight)),
        bias(static_cast<const W*>(a.bias)),
        y(static_cast<Y*>(a.y)),
        h(static_cast<R*>(a.h)),
        rows(a.rows),
        cols(a.cols),
        x_stride(a.x_stride),
        residual_stride(a.residual_stride),
        eps(a.eps),
        weight_offset(a.weight_offset),
        inverse_count(1.0f / static_cast<float>(a.cols)),
        beyond_l2(a.rows * a.cols * (size_of(a.dtype) + (a.residual == nullptr ? 0 : size_of(a.residual_dtype))) >=
                  kL2Bytes) {}

  // As in rms_norm: long streams are read so that the results leave L2 first.
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ const T* x_row(int64_t row) const { return x + row * x_stride; }
  __device__ const R* residual_row(int64_t row) const { return residual + row * residual_stride; }
  __device__ R* h_row(int64_t row) const { return h + row * cols; }
  __device__ Y* y_row(int64_t row) const { return y + row * cols; }

  // Where a later sweep finds h.
  __device__ const R* kept_row(int64_t row) const {
    if constexpr (std::is_same_v<T, R>) {
      if (h == nullptr) return x_row(row);
    }
    return h_row(row);
  }

  // n neighbours of h, of which the first stands at (row, col). 16-bit sums need no detour through f32: that would
  // round to the same value.
  template <int n>
  __device__ __forceinline__ Vec<R, n> add(const Vec<T, n>& a, const Vec<R, n>& b, int64_t, int64_t) const {
    Vec<R, n> sum;
    if constexpr (std::is_same_v<R, float>) {
#pragma unroll
      for (int i = 0; i < n; ++i) sum[i] = to_float(a[i]) + b[i];
    } else if constexpr (n == 1) {
      sum[0] = __hadd(a[0], b[0]);
    } else {
      using Pair = std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162>;
#pragma unroll
      for (int i = 0; i < n; i += 2) {
        reinterpret_cast<Pair&>(sum[i]) =
            __hadd2(reinterpret_cast<const Pair&>(a[i]), reinterpret_cast<const Pair&>(b[i]));
      }
    }
    return sum;
  }

  template <int n>
  __device__ __forceinline__ Vec<Y, n> round(float (&values)[n]) const {
    Vec<Y, n> rounded;
    from_float(rounded, values);
    return rounded;
  }
};

// With it, y = (h - mean) * rstd * weight + bias.
struct RowStatistics {
  float mean, rstd;  // RMS norm has no mean
};

// Adds what the first sweep sums: for layer norm shares of h, for RMS norm its square.
template <class Rows, class R, int n>
__device__ __forceinline__ float first_sum(float sum, const Vec<R, n>& h) {
  float values[n];
  to_float(values, h);
#pragma unroll
  for (int i = 0; i < n; ++i) sum = fmaf(values[i], Rows::kLayer ? kMeanShare : values[i], sum);
  return sum;
}

// Adds the squared distances from the mean.
template <class R, int n>
__device__ __forceinline__ float second_sum(float sum, const Vec<R, n>& h, float mean) {
  float values[n];
  to_float(values, h);
#pragma unroll
  for (int i = 0; i < n; ++i) sum = fmaf(values[i] - mean, values[i] - mean, sum);
  return sum;
}

// n neighbours of y from col on.
template <class Rows, class R, int n>
__device__ __forceinline__ auto normalise(const Rows& v, const Vec<R, n>& h, const RowStatistics& row, int64_t col) {
  WeightPack<typename Rows::W, n> weight;
  weight.load_from(v.weight, col);
  float values[n], factors[n];
  to_float(values, h);
  weight.to_floats(factors);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float centred = Rows::kLayer ? values[i] - row.mean : values[i];
    values[i] = centred * row.rstd * (factors[i] + v.weight_offset);
  }
  if constexpr (Rows::kLayer) {
    if (v.bias != nullptr) {
      weight.load_from(v.bias, col);
      weight.to_floats(factors);
#pragma unroll
      for (int i = 0; i < n; ++i) values[i] += factors[i];
    }
  }
  return v.round(values);
}

// An access of 16 bytes with the policy, a narrower one without.
template <class T, int n>
__device__ __forceinline__ void load_once(Vec<T, n>& to, const T* from, uint64_t policy) {
  if constexpr (sizeof(to) == 16) {
    load_with_policy(to, from, policy);
  } else {
    load(to, from);
  }
}

// Calls body.template operator()<AddNormTypes>() for the dtypes and the norm of a call.
template <class Body>
void visit_add_norm(const AddNormArgs& a, Body&& body) {
  visit_add_norm_dtypes(a, [&]<class T, class R, class W>() {
    if (a.layer) {
      body.template operator()<AddNormTypes<true, T, R, W>>();
    } else {
      body.template operator()<AddNormTypes<false, T, R, W>>();
    }
  });
}

}  // namespace warpsmith
