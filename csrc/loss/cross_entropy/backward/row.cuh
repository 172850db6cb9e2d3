// What the rungs of cross_entropy_backward share: the rows of the gradient, and the numbers that make up one of them.
#pragma once

#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy/backward/cross_entropy_backward.h"

namespace warpsmith {

template <class T>
__device__ __forceinline__ T* dlogits_row(const CrossEntropyBackwardArgs& a, int64_t row) {
  return static_cast<T*>(a.dlogits) + row * a.dlogits_stride;
}

__device__ __forceinline__ RowGradient row_gradient(const CrossEntropyBackwardArgs& a, int64_t row) {
  return gradient_of(a.in, target_of(a.in, row), a.lse[row * a.lse_stride], a.grad_loss[row * a.grad_loss_stride],
                     a.grad_lse[row * a.grad_lse_stride]);
}

}  // namespace warpsmith
