// What the rungs of cross_entropy_backward share: the rows of the gradient, and the numbers that make up one of them.
#pragma once

#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy_backward/cross_entropy_backward.h"

namespace warpsmith {

template <class T>
__device__ __forceinline__ T* dlogits_row(const CrossEntropyBackwardArgs& a, int64_t row) {
  return static_cast<T*>(a.dlogits) + row * a.dlogits_stride;
}

__device__ __forceinline__ RowGradient row_gradient(const CrossEntropyBackwardArgs& a, int64_t row) {
  const float lse = a.lse[row * a.lse_stride];
  const float grad_loss = a.grad_loss[row * a.grad_loss_stride];
  const float grad_lse = a.grad_lse[row * a.grad_lse_stride];
  const float factor = fmaf(grad_loss, fmaf(2.0f * a.in.z_loss, lse, 1.0f), grad_lse);
  return gradient_of(a.in, target_of(a.in, row), lse, factor, grad_loss);
}

}  // namespace warpsmith
