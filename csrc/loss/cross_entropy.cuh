// Device side of what the operators around cross-entropy share: targets, the loss of a row, the gradient of a pack.
#pragma once

#include <cmath>

#include "device/ptx/load_once.h"
#include "loss/cross_entropy.h"
#include "loss/row_sums.cuh"

namespace warpsmith {

template <class T>
__device__ __forceinline__ const T* logits_row(const CrossEntropyInput& in, int64_t row) {
  return static_cast<const T*>(in.logits) + row * in.logits_stride;
}

// Of logits that the gradient may overwrite. The compiler keeps its place: other loads it moves behind the wait for the
// target, which takes as long as they do.
template <class T>
__device__ __forceinline__ void load_logits(Pack<T>& to, const T* from, uint64_t policy) {
  reinterpret_cast<uint4&>(to) = ptx::load_once(reinterpret_cast<const uint4*>(from), policy);
}

// The packs of a row and what lies around them, as far as `exists` says that there is one.
template <class T>
__device__ __forceinline__ PeeledRow<T> peel(const CrossEntropyInput& in, const T* x, bool exists = true) {
  return {x, exists ? static_cast<int>(in.cols) : 0};
}

__device__ __forceinline__ int64_t target_of(const CrossEntropyInput& in, int64_t row) {
  const int64_t i = row * in.target_stride;
  return in.wide_target ? static_cast<const int64_t*>(in.target)[i] : static_cast<const int32_t*>(in.target)[i];
}

__device__ __forceinline__ bool is_class(const CrossEntropyInput& in, int64_t target) {
  return target >= 0 && target < in.cols;
}

// The logit of the target; NaN, which becomes the loss, where the target is no class.
template <class T>
__device__ __forceinline__ float target_logit(const CrossEntropyInput& in, const T* x, int64_t target) {
  return is_class(in, target) ? to_float(x[target]) : NAN;
}

__device__ __forceinline__ float lse_of(const RowSums& sums) { return sums.most + logf(sums.exps); }

// Differences to the maximum come first: they are small, where lse and the logit may be large and near each other.
// log_exps: the logarithm of sums.exps.
__device__ __forceinline__ float loss_of(const CrossEntropyInput& in, const RowSums& sums, float log_exps,
                                         float target_logit) {
  float loss = sums.most - target_logit + log_exps;
  if (in.label_smoothing != 0.0f) {
    const float uniform = in.label_smoothing * (sums.most + log_exps) - in.smoothing_share * sums.total;
    loss = fmaf(1.0f - in.label_smoothing, loss, uniform);
  }
  if (in.z_loss != 0.0f) {
    const float lse = sums.most + log_exps;
    loss = fmaf(in.z_loss * lse, lse, loss);
  }
  return loss;
}

// Writes the loss and the lse of a row; for one thread of those that share it.
__device__ __forceinline__ void write_loss(const CrossEntropyInput& in, int64_t row, int64_t target, float target_logit,
                                           const RowSums& sums, float* loss, float* lse) {
  const bool ignored = target == in.ignore_index;
  const float log_exps = logf(sums.exps);
  loss[row] = ignored ? 0.0f : loss_of(in, sums, log_exps, target_logit);
  lse[row] = ignored ? 0.0f : sums.most + log_exps;
}

// The gradient of a row: softmax times one number, less another for every class, less a third for the target.
struct RowGradient {
  int64_t target;
  float base;  // softmax is e^(x - base), up to what `factor` holds
  float factor, every, at_target;
  bool ignored;
};

__device__ __forceinline__ RowGradient gradient_of(const CrossEntropyInput& in, int64_t target, float base,
                                                   float factor, float grad_loss) {
  return {.target = target,
          .base = base,
          .factor = is_class(in, target) ? factor : NAN,
          .every = grad_loss * in.smoothing_share,
          .at_target = grad_loss * (1.0f - in.label_smoothing),
          .ignored = target == in.ignore_index};
}

// Of e^(x - maximum), from the sums of the row. Relative to the maximum the exponentials keep an accuracy that lse, itself
// rounded, costs.
__device__ __forceinline__ float softmax_factor(const CrossEntropyInput& in, const RowSums& sums, float grad_loss) {
  const float lse = in.z_loss != 0.0f ? lse_of(sums) : 0.0f;
  return grad_loss * fmaf(2.0f * in.z_loss, lse, 1.0f) / sums.exps;
}

__device__ __forceinline__ RowGradient gradient_of(const CrossEntropyInput& in, int64_t target, const RowSums& sums,
                                                   float grad_loss) {
  return gradient_of(in, target, base_of(sums.most), softmax_factor(in, sums, grad_loss), grad_loss);
}

__device__ __forceinline__ float gradient_at(float x, const RowGradient& row, int64_t col) {
  if (row.ignored) return 0.0f;
  const float value = fmaf(exp_from(x, row.base), row.factor, -row.every);
  return col == row.target ? value - row.at_target : value;
}

// Of n neighbours from column `col` on, whose exponentials relative to the base are known.
template <class T, int n>
__device__ __forceinline__ Vec<T, n> gradient_from(const float (&exps)[n], const RowGradient& row, int64_t col) {
  float values[n];
#pragma unroll
  for (int i = 0; i < n; ++i) values[i] = row.ignored ? 0.0f : fmaf(exps[i], row.factor, -row.every);
  const int64_t target = row.target - col;
  if (target >= 0 && target < n && !row.ignored) {
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] -= i == target ? row.at_target : 0.0f;
  }
  Vec<T, n> gradient;
  from_float(gradient, values);
  return gradient;
}

template <class T, int n>
__device__ __forceinline__ Vec<T, n> gradient_at(const Vec<T, n>& x, const RowGradient& row, int64_t col) {
  float exps[n];
  to_float(exps, x);
#pragma unroll
  for (int i = 0; i < n; ++i) exps[i] = exp_from(exps[i], row.base);
  return gradient_from<T>(exps, row, col);
}

// Calls body.template operator()<T, Smooth>() for the dtype and for whether the sum of the logits is needed.
template <class Body>
void visit_smoothing(const CrossEntropyInput& in, Body&& body) {
  dispatch_float(in.dtype, [&]<class T>() {
    if (in.label_smoothing != 0.0f) {
      body.template operator()<T, std::true_type>();
    } else {
      body.template operator()<T, std::false_type>();
    }
  });
}

}  // namespace warpsmith
