// What the rungs of bias_scale_mask_softmax_dropout_backward share: typed arguments, the row's sums, its write-out.
#pragma once

#include <tuple>

#include "host/registry.h"
#include "norm/row.cuh"
#include "softmax/bias_scale_mask_softmax_dropout_backward/bias_scale_mask_softmax_dropout_backward.h"
#include "softmax/logits.cuh"

namespace warpsmith {

template <class T>
struct BiasScaleMaskSoftmaxDropoutBackwardRows {
  LogitRows<T> logits;
  const T* grad;          // [rows, cols], grad_stride elements apart
  const float* lse;       // [rows]
  const float* grad_lse;  // [rows] or null
  T* dx;                  // [rows, cols]
  int64_t grad_stride;
  Dropout dropout;

  explicit BiasScaleMaskSoftmaxDropoutBackwardRows(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a)
      : logits(a.logits),
        grad(static_cast<const T*>(a.grad)),
        lse(a.lse),
        grad_lse(a.grad_lse),
        dx(static_cast<T*>(a.dx)),
        grad_stride(a.grad_stride),
        dropout(a.dropout) {}
};

// With e = exp(z - lse): where lse is far from 0 it is too coarse for the sum to be 1, so the sum is taken again.
//
// Where one entry holds nearly all of a row, its grad and the mean of grad cancel in its dx: the sums over the others are
// kept apart, so that what is left of the difference keeps its digits.
struct GradientSums {
  float exponential = 0.0f;  // of e
  float product = 0.0f;      // of e * grad, where kept
  float peaks = 0.0f;        // how many entries hold most of the row: at most one, unless lse is very coarse
  float peak_exponential = 0.0f, peak_product = 0.0f, peak_grad = 0.0f;  // of those; the sums above leave them out

  static constexpr float kPeak = 0.75f;

  __device__ __forceinline__ void add(float e, float grad) {
    const bool peak = e > kPeak;
    exponential += peak ? 0.0f : e;
    product = peak ? product : fmaf(e, grad, product);
    peaks += peak ? 1.0f : 0.0f;
    peak_exponential += peak ? e : 0.0f;
    peak_product = peak ? fmaf(e, grad, peak_product) : peak_product;
    peak_grad += peak ? grad : 0.0f;
  }

  __device__ __forceinline__ void add_peaks(const GradientSums& other) {
    peaks += other.peaks;
    peak_exponential += other.peak_exponential;
    peak_product += other.peak_product;
    peak_grad += other.peak_grad;
  }

  // A pack in two chains of additions, at a third of the price where none of its entries is a peak. The entries that are
  // none are added up in the same order either way.
  template <int n>
  __device__ __forceinline__ void add(const float (&e)[n], const float (&grad)[n]) {
    float most = e[0];
#pragma unroll
    for (int j = 1; j < n; ++j) most = fmaxf(most, e[j]);
    GradientSums even, odd;
    if (most > kPeak) {
#pragma unroll
      for (int j = 0; j < n; j += 2) {
        even.add(e[j], grad[j]);
        odd.add(e[j + 1], grad[j + 1]);
      }
      add_peaks(even);
      add_peaks(odd);
    } else {
#pragma unroll
      for (int j = 0; j < n; j += 2) {
        even.exponential += e[j];
        odd.exponential += e[j + 1];
        even.product = fmaf(e[j], grad[j], even.product);
        odd.product = fmaf(e[j + 1], grad[j + 1], odd.product);
      }
    }
    exponential += even.exponential + odd.exponential;
    product += even.product + odd.product;
  }
};

// Peaks are rare: a vote spares most warps their sums, which would be 0.
template <int lanes>
__device__ __forceinline__ GradientSums warp_sums(const GradientSums& own) {
  if (!__any_sync(kAllLanes, own.peaks != 0.0f)) {
    return {warp_reduce<lanes>(own.exponential), warp_reduce<lanes>(own.product)};
  }
  return {warp_reduce<lanes>(own.exponential),  warp_reduce<lanes>(own.product),
          warp_reduce<lanes>(own.peaks),        warp_reduce<lanes>(own.peak_exponential),
          warp_reduce<lanes>(own.peak_product), warp_reduce<lanes>(own.peak_grad)};
}

// Over the block; every thread gets them.
__device__ __forceinline__ GradientSums block_sums(const GradientSums& own, GradientSums (&partial)[kWarp]) {
  const GradientSums sums = warp_sums<kWarp>(own);
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) return sums;
  if (lane == 0) partial[threadIdx.x / kWarp] = sums;
  __syncthreads();
  return warp_sums<kWarp>(lane < warps ? partial[lane] : GradientSums{});
}

// What turns e and grad of a row into dx = gain * e * ((grad * dropout.scale - reference) + shift). The order of the
// roundings is that of the sums, so that a row with one entry gets exactly 0.
struct GradientFactors {
  float gain, reference, shift;
  bool none;  // no logit in the row, hence no gradient, whatever grad holds

  template <class T>
  __device__ __forceinline__ GradientFactors(const BiasScaleMaskSoftmaxDropoutBackwardRows<T>& v, int64_t row,
                                             const GradientSums& sums) {
    const float total = sums.exponential + sums.peak_exponential;
    const float reciprocal = reciprocal_sum(total);
    const float outer = v.grad_lse == nullptr ? 0.0f : v.grad_lse[row];
    const bool peaked = sums.peaks == 1.0f;
    gain = v.logits.scale * reciprocal;
    reference = peaked ? sums.peak_grad : 0.0f;
    const float product = peaked ? fmaf(-reference, sums.exponential, sums.product) : sums.product + sums.peak_product;
    shift = outer - product * reciprocal;
    none = total == 0.0f;
  }

  __device__ __forceinline__ float dx(float e, float grad) const { return gain * e * ((grad - reference) + shift); }
};

// Zeroes the gradient of what was dropped. at: number of the pack's first element in the whole tensor.
template <class T>
__device__ __forceinline__ void drop(Pack<T>& grad, const Dropout& dropout, int64_t at) {
  bool kept[kPack<T>];
  dropout.keeps(kept, at);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) grad[j] = kept[j] ? grad[j] : from_float<T>(0.0f);
}

// Adds a pack to the row's sums; z becomes e. Elements from `left` on lie behind the live columns: their e is 0, and
// their grad is made 0.
template <class T>
__device__ __forceinline__ void add_pack(GradientSums& sums, float (&z)[kPack<T>], Pack<T>& grad, float lse,
                                         float keep_scale, int64_t left) {
  if (left < kPack<T>) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) grad[j] = j >= left ? from_float<T>(0.0f) : grad[j];
  }
  float g[kPack<T>];
  to_float(g, grad);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    z[j] = exp_below(z[j], lse);
    g[j] = __fmul_rn(g[j], keep_scale);
  }
  sums.add(z, g);
}

// dx of a pack from e and grad; NaN stays before `left`.
template <class T>
__device__ __forceinline__ void write_gradient(T* dx, const float (&e)[kPack<T>], const Pack<T>& grad,
                                               const GradientFactors& factors, float keep_scale, int64_t left) {
  float g[kPack<T>];
  to_float(g, grad);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) g[j] = factors.dx(e[j], __fmul_rn(g[j], keep_scale));
  if (left < kPack<T>) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) g[j] = j >= left ? 0.0f : g[j];
  }
  Pack<T> out;
  from_float(out, g);
  store<Cache::streaming>(dx, out);
}

// One row from its threads' registers. reduce: sums over those who share the row.
template <class Tile, class Biased, class T, class Reduce>
__device__ __forceinline__ void dropout_backward_row(const BiasScaleMaskSoftmaxDropoutBackwardRows<T>& v,
                                                     Reduce reduce) {
  constexpr int kPacks = Tile::packs, kWidth = kPack<T>;
  LogitPlace<Tile> place;
  if constexpr (Biased::value) place.row = v.logits.turn(place.row);
  const LogitRow<T> r = v.logits.template row<int>(place.row);
  const int live = static_cast<int>(r.live), offset = place.template col<T>(0);
  const int64_t start = place.row * v.logits.cols + offset;  // the thread's first element

  // load
  const T* gGrad = v.grad + place.row * v.grad_stride + offset;
  const uint64_t policy = v.logits.load_policy();
  const float lse = live > 0 ? v.lse[place.row] : 0.0f;
  Pack<T> grad[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    reinterpret_cast<uint4&>(grad[i]) = uint4{};
    if (place.template col<T>(i) < live) load_with_policy(grad[i], gGrad + place.template first_col<T>(i), policy);
  }
  float z[kPacks][kWidth];
  read_logits<Tile, Biased>(z, v.logits, r, place);

  // exponentials and sums
  GradientSums sums;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int first = place.template first_col<T>(i);
    if (place.template jumps_over<T>(i, live)) continue;
    if (v.dropout.active) drop<T>(grad[i], v.dropout, start + first);
    add_pack<T>(sums, z[i], grad[i], lse, v.dropout.scale, live - place.template col<T>(i));
    keep_packed(grad[i]);
  }
  sums = reduce(sums);
  if (place.row >= v.logits.rows) return;

  // write
  const GradientFactors factors(v, place.row, sums);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int col = place.template col<T>(i), first = place.template first_col<T>(i);
    if (col >= v.logits.cols) continue;
    if (first < live && !factors.none) {
      write_gradient<T>(v.dx + start + first, z[i], grad[i], factors, v.dropout.scale, live - col);
    } else {
      write_zeros(v.dx + start + first);
    }
  }
}

}  // namespace warpsmith
