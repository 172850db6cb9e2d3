// What the rungs of bias_scale_mask_softmax_dropout_backward share: typed arguments, the row's sums, its write-out.
#pragma once

#include "host/registry.h"
#include "row/packed.h"
#include "softmax/logits.cuh"
#include "softmax/scaled_masked_softmax/dropout_backward/bias_scale_mask_softmax_dropout_backward.h"

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

  // A pack in two chains of additions, at a third of the price where all of its entries together make no peak. The
  // entries that are none are added up in the same order either way.
  template <int n>
  __device__ __forceinline__ void add(const float (&e)[n], const float (&grad)[n]) {
    GradientSums even{e[0], e[0] * grad[0]}, odd{e[1], e[1] * grad[1]};
#pragma unroll
    for (int j = 2; j < n; j += 2) {
      even.exponential += e[j];
      odd.exponential += e[j + 1];
      even.product = fmaf(e[j], grad[j], even.product);
      odd.product = fmaf(e[j + 1], grad[j + 1], odd.product);
    }
    if (even.exponential + odd.exponential > kPeak) {
      even = odd = {};
#pragma unroll
      for (int j = 0; j < n; j += 2) {
        even.add(e[j], grad[j]);
        odd.add(e[j + 1], grad[j + 1]);
      }
      add_peaks(even);
      add_peaks(odd);
    }
    exponential += even.exponential + odd.exponential;
    product += even.product + odd.product;
  }
};

// Peaks are rare: a vote spares most warps their sums, which would be 0.
__device__ __forceinline__ GradientSums warp_sums(const GradientSums& own) {
  if (!__any_sync(kAllLanes, own.peaks != 0.0f)) return {warp_reduce(own.exponential), warp_reduce(own.product)};
  return {warp_reduce(own.exponential),      warp_reduce(own.product),      warp_reduce(own.peaks),
          warp_reduce(own.peak_exponential), warp_reduce(own.peak_product), warp_reduce(own.peak_grad)};
}

// Over a block; every thread gets them.
__device__ __forceinline__ GradientSums block_sums(const GradientSums& own, GradientSums (&partial)[kWarp]) {
  const GradientSums sums = warp_sums(own);
  const int count = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (count == 1) return sums;
  if (lane == 0) partial[threadIdx.x / kWarp] = sums;
  __syncthreads();
  return warp_sums(lane < count ? partial[lane] : GradientSums{});
}

// 16-bit gradients are not worth a multiplication of every entry by the weight.
template <class T>
inline constexpr bool kFolds = sizeof(T) == 2;

// What turns e and grad, before dropout scales it up, into dx = weight * e * (slope * grad + intercept); the weight is 1
// where it folds into the others. In a rare row dx = weight * e * (slope * (grad - reference) + intercept). The difference
// is exact for the entry that holds the row, so that a row with one entry gets exactly 0; and no product outgrows what it
// is a part of.
struct GradientFactors {
  float slope, intercept, reference, weight;
  bool rare;
  bool none;  // no logit in the row, hence no gradient, whatever grad holds

  template <class T>
  __device__ __forceinline__ GradientFactors(const BiasScaleMaskSoftmaxDropoutBackwardRows<T>& v, int64_t row,
                                             const GradientSums& sums) {
    constexpr float kMostGain = 1.0625f;  // more than a scale of 1 and a sum that is not quite 1 come to
    const float total = sums.exponential + sums.peak_exponential;
    const float keep_scale = v.dropout.scale;
    float reciprocal;
    if constexpr (sizeof(T) == 4) {
      reciprocal = reciprocal_sum(total);
    } else {
      reciprocal = total == 0.0f ? 0.0f : ptx::reciprocal_approx_ftz(total);  // e is 0 or above the subnormals
    }
    const float outer = v.grad_lse == nullptr ? 0.0f : v.grad_lse[row];
    const float gain = v.logits.scale * reciprocal;
    const bool peaked = sums.peaks == 1.0f;
    reference = peaked ? sums.peak_grad : 0.0f;
    const float product = peaked ? fmaf(-reference, sums.exponential, sums.product) : sums.product + sums.peak_product;
    const float shift = outer - keep_scale * (product * reciprocal);
    const bool folds = kFolds<T> && fabsf(gain) <= kMostGain;
    slope = folds ? gain * keep_scale : keep_scale;
    intercept = folds ? gain * shift : shift;
    weight = folds ? 1.0f : gain;
    const bool infinite = !(fabsf(intercept) < kInfinity);
    rare = peaked | (folds != kFolds<T>) | infinite;
    none = total == 0.0f;
  }

  __device__ __forceinline__ float rare_dx(float e, float grad) const {
    return weight * e * fmaf(grad - reference, slope, intercept);
  }
  template <class T>
  __device__ __forceinline__ float dx(float e, float grad) const {
    if constexpr (!kFolds<T>) e *= weight;
    return e * fmaf(grad, slope, intercept);
  }
};

// Two 16-bit values, each kept or made 0.
__device__ __forceinline__ uint32_t keep(uint32_t pair, bool low, bool high) {
  if (!low) pair &= 0xffff0000u;
  if (!high) pair &= 0x0000ffffu;
  return pair;
}

// Zeroes the gradient of what is not kept.
template <class T>
__device__ __forceinline__ void drop(Pack<T>& grad, const bool (&kept)[kPack<T>]) {
  if constexpr (sizeof(T) == 2) {
    auto& raw = reinterpret_cast<uint4&>(grad);
    raw = {keep(raw.x, kept[0], kept[1]), keep(raw.y, kept[2], kept[3]), keep(raw.z, kept[4], kept[5]),
           keep(raw.w, kept[6], kept[7])};
  } else {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) grad[j] = kept[j] ? grad[j] : from_float<T>(0.0f);
  }
}

// Zeroes the gradient of what was dropped. group: a quarter of the number of the pack's first element in the tensor.
template <class T>
__device__ __forceinline__ void drop(Pack<T>& grad, const Dropout& dropout, uint64_t group) {
  bool kept[kPack<T>];
  dropout.keeps_group(kept, group);
  drop<T>(grad, kept);
}

// e^(z - base) with what rounding takes from the difference and from its product with log2(e).
__device__ __forceinline__ float exp_of_difference(float z, float base) {
  constexpr float kLog2e = 1.44269504f, kLog2eRest = 1.92596303e-8f, kLn2 = 0.693147181f;
  const float difference = z - base, lost = (z - difference) - base;
  const float exponent = difference * kLog2e;
  const float rest = fmaf(difference, kLog2eRest, fmaf(difference, kLog2e, -exponent));
  const float e = ptx::exp2_approx_ftz(exponent);
  return e > 0.0f ? fmaf(e, fmaf(rest, kLn2, lost), e) : e;  // e of 0: the rests of an infinity are NaN
}

// Adds a pack to the row's sums; z becomes e. Elements from `left` on lie behind the live columns: their e and their
// grad are made 0. base: finite_base(lse).
template <class T>
__device__ __forceinline__ void add_pack(GradientSums& sums, float (&z)[kPack<T>], Pack<T>& grad, float base,
                                         int64_t left) {
  if (left < kPack<T>) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      z[j] = j >= left ? -kInfinity : z[j];
      grad[j] = j >= left ? from_float<T>(0.0f) : grad[j];
    }
  }
  float g[kPack<T>];
  to_float(g, grad);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) z[j] = sizeof(T) == 4 ? exp_of_difference(z[j], base) : exp_of(z[j] - base);
  sums.add(z, g);
}

// dx of a pack from e and grad. NaN stays before `left`: only a rare row has any.
template <class T, bool rare>
__device__ __forceinline__ void write_gradient(T* dx, const float (&e)[kPack<T>], const Pack<T>& grad,
                                               const GradientFactors& factors, int64_t left) {
  float g[kPack<T>];
  to_float(g, grad);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    if constexpr (rare) {
      g[j] = j >= left ? 0.0f : factors.rare_dx(e[j], g[j]);
    } else {
      g[j] = factors.template dx<T>(e[j], g[j]);
    }
  }
  Pack<T> out;
  from_float(out, g);
  store<Cache::streaming>(dx, out);
}

}  // namespace warpsmith
