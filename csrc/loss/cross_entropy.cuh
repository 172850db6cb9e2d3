// Device side of what the operators around cross-entropy share: targets, the loss of a row, the gradient of a pack.
#pragma once

#include <cmath>

#include "loss/cross_entropy.h"
#include "loss/row_sums.cuh"

namespace warpsmith {

template <class T>
__device__ __forceinline__ const T* logits_row(const CrossEntropyInput& in, int64_t row) {
  return static_cast<const T*>(in.logits) + row * in.logits_stride;
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
__device__ __forceinline__ float loss_of(const CrossEntropyInput& in, const RowSums& sums, float target_logit) {
  const float log_exps = logf(sums.exps);
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
  loss[row] = ignored ? 0.0f : loss_of(in, sums, target_logit);
  lse[row] = ignored ? 0.0f : lse_of(sums);
}

// The gradient of a row: softmax times one number, less another for every class, less a third for the target.
struct RowGradient {
  int64_t target;
  float base;  // softmax is e^(x - base), up to what `factor` holds
  float factor, every, at_target;
  bool ignored;
};

// From the lse that the forward pass left. grad_lse: the gradient that reaches lse from elsewhere.
__device__ __forceinline__ RowGradient gradient_of(const CrossEntropyInput& in, int64_t target, float lse,
                                                   float grad_loss, float grad_lse) {
  RowGradient gradient;
  gradient.target = target;
  gradient.base = lse;
  gradient.factor = fmaf(grad_loss, fmaf(2.0f * in.z_loss, lse, 1.0f), grad_lse);
  gradient.every = grad_loss * in.smoothing_share;
  gradient.at_target = grad_loss * (1.0f - in.label_smoothing);
  gradient.ignored = target == in.ignore_index;
  if (!is_class(in, target)) gradient.factor = NAN;
  return gradient;
}

// From the sums of the row. Relative to the maximum the exponentials keep an accuracy that lse, itself rounded, costs.
__device__ __forceinline__ RowGradient gradient_of(const CrossEntropyInput& in, int64_t target, const RowSums& sums,
                                                   float grad_loss) {
  const float lse = in.z_loss != 0.0f ? lse_of(sums) : 0.0f;
  RowGradient gradient = gradient_of(in, target, lse, grad_loss, 0.0f);
  gradient.base = base_of(sums.most);
  gradient.factor /= sums.exps;
  return gradient;
}

__device__ __forceinline__ float gradient_at(float x, const RowGradient& row, int64_t col) {
  if (row.ignored) return 0.0f;
  const float value = fmaf(exp_from(x, row.base), row.factor, -row.every);
  return col == row.target ? value - row.at_target : value;
}

// Of n neighbours from column `col` on.
template <class T, int n>
__device__ __forceinline__ Vec<T, n> gradient_at(const Vec<T, n>& x, const RowGradient& row, int64_t col) {
  float values[n];
  if (row.ignored) {
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = 0.0f;
  } else {
    to_float(values, x);
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = fmaf(exp_from(values[i], row.base), row.factor, -row.every);
    const int64_t target = row.target - col;
    if (target >= 0 && target < n) {
#pragma unroll
      for (int i = 0; i < n; ++i) values[i] -= i == target ? row.at_target : 0.0f;
    }
  }
  Vec<T, n> gradient;
  from_float(gradient, values);
  return gradient;
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
