// Typed arguments of the add_norm_backward rungs, what follows a row's sums, and the sum of the partial dw and db.
#pragma once

#include <type_traits>

#include "host/launch.h"
#include "host/registry.h"
#include "norm/add_norm_backward/add_norm_backward.h"
#include "norm/backward.cuh"

namespace warpsmith {

// T: grad and dx. H: h, grad_h and dh. W: weight, dw and db.
template <bool layer, class T_, class H_, class W_>
struct AddNormBackwardTypes {
  using T = T_;
  using H = H_;
  using W = W_;
  static constexpr bool kLayer = layer;
  // Values of a 128-bit access to the wider of grad and h; the narrower then takes a shorter one.
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(H) > sizeof(T) ? sizeof(H) : sizeof(T));
};

template <class Types>
struct AddNormBackwardRows : Types {
  using typename Types::H;
  using typename Types::T;
  using typename Types::W;

  const T* grad;      // [rows, cols], grad_stride elements apart
  const H* grad_h;    // [rows, cols], grad_h_stride elements apart; null for zeros
  const H* h;         // [rows, cols], h_stride elements apart
  const W* weight;    // [cols] or null
  H* dh;              // [rows, cols]
  T* dx;              // [rows, cols] or null
  float* partial_dw;  // [partials, cols] or null
  float* partial_db;  // [partials, cols] or null
  float* statistics;  // [2, rows] or null
  int64_t rows, cols, grad_stride, grad_h_stride, h_stride;
  float eps, weight_offset;
  float inverse_count;  // 1 / cols
  bool beyond_l2;       // the inputs alone would fill L2

  explicit AddNormBackwardRows(const AddNormBackwardArgs& a)
      : grad(static_cast<const T*>(a.grad)),
        grad_h(static_cast<const H*>(a.grad_h)),
        h(static_cast<const H*>(a.h)),
        weight(static_cast<const W*>(a.weight)),
        dh(static_cast<H*>(a.dh)),
        dx(static_cast<T*>(a.dx)),
        partial_dw(a.partial_dw),
        partial_db(a.partial_db),
        statistics(a.statistics),
        rows(a.rows),
        cols(a.cols),
        grad_stride(a.grad_stride),
        grad_h_stride(a.grad_h_stride),
        h_stride(a.h_stride),
        eps(a.eps),
        weight_offset(a.weight_offset),
        inverse_count(1.0f / static_cast<float>(a.cols)),
        beyond_l2(a.rows * a.cols * (size_of(a.dtype) + (a.grad_h == nullptr ? 1 : 2) * size_of(a.h_dtype)) >=
                  kL2Bytes) {}

  // As in rms_norm: long streams are read so that the results leave L2 first.
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ const T* grad_row(int64_t row) const { return grad + row * grad_stride; }
  __device__ const H* grad_h_row(int64_t row) const { return grad_h + row * grad_h_stride; }
  __device__ const H* h_row(int64_t row) const { return h + row * h_stride; }
  __device__ H* dh_row(int64_t row) const { return dh + row * cols; }
  __device__ T* dx_row(int64_t row) const { return dx + row * cols; }

  // Turns n neighbours of dh, of which the first stands at (row, col), into dx.
  template <int n>
  __device__ __forceinline__ void to_dx(float (&)[n], int64_t, int64_t) const {}
};

// What the second sweep over a row adds up, around its mean.
template <bool layer>
struct AddNormSums {
  static constexpr int kValues = layer ? 3 : 2;
  float value[kValues] = {};  // sum of (h - mean)^2 | of g * (h - mean) | of g, layer norm only

  __device__ __forceinline__ void add(float centred, float g) {
    value[0] = fmaf(centred, centred, value[0]);
    value[1] = fmaf(g, centred, value[1]);
    if constexpr (layer) value[2] += g;
  }
};

// With xhat = (h - mean) * rstd: dh = rstd * (g - shift - xhat * slope) + grad_h.
struct AddNormFactors {
  float mean, rstd;
  float shift;  // mean of g; 0 in RMS norm
  float slope;  // mean of g * xhat

  template <class Rows>
  __device__ __forceinline__ AddNormFactors(const Rows& v, float mean_, const AddNormSums<Rows::kLayer>& sums)
      : mean(mean_), rstd(reciprocal_rms(sums.value[0], v.inverse_count, v.eps)), shift(0.0f) {
    slope = rstd * sums.value[1] * v.inverse_count;
    if constexpr (Rows::kLayer) shift = sums.value[2] * v.inverse_count;
  }

  __device__ __forceinline__ float xhat(float h) const { return (h - mean) * rstd; }
  __device__ __forceinline__ float dh(float xhat, float g) const { return rstd * fmaf(-xhat, slope, g - shift); }
};

// sum + term, with what rounding loses kept for the next term (Kahan 1965). Beside an infinite sum nothing is kept.
__device__ __forceinline__ void add_compensated(float& sum, float& lost, float term) {
  const float wanted = term - lost, next = sum + wanted;
  lost = (next - sum) - wanted;
  lost = fabsf(lost) < INFINITY ? lost : 0.0f;
  sum = next;
}

// Calls body.template operator()<AddNormBackwardTypes>() for the dtypes and the norm of a call.
template <class Body>
void visit_add_norm_backward(const AddNormBackwardArgs& a, Body&& body) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    const auto norm = [&]<class H>() {
      if (a.layer) {
        body.template operator()<AddNormBackwardTypes<true, T, H, W>>();
      } else {
        body.template operator()<AddNormBackwardTypes<false, T, H, W>>();
      }
    };
    if (std::is_same_v<T, float> || a.h_dtype == Dtype::f32) {
      norm.template operator()<float>();
    } else {
      norm.template operator()<T>();
    }
  });
}

// dw and db, after a rung has left `partials` rows of each.
template <class W>
void sum_partials(const AddNormBackwardArgs& a, int64_t partials, cudaStream_t stream) {
  NormBackwardArgs columns{};
  columns.dw = a.dw;
  columns.db = a.db;
  columns.partial_dw = a.partial_dw;
  columns.partial_db = a.partial_db;
  columns.cols = a.cols;
  sum_partials<W>(columns, partials, stream);
}

}  // namespace warpsmith
