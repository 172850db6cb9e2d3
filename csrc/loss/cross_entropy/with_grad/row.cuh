// What the rungs of cross_entropy_with_grad share: the rows of the gradient, how they are read and written.
#pragma once

#include "device/ptx/memory.h"
#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy/with_grad/cross_entropy_with_grad.h"

namespace warpsmith {

template <class T>
__device__ __forceinline__ T* dlogits_row(const CrossEntropyWithGradArgs& a, int64_t row) {
  return static_cast<T*>(a.dlogits) + row * a.dlogits_stride;
}

__device__ __forceinline__ float grad_loss_of(const CrossEntropyWithGradArgs& a, int64_t row) {
  return a.grad_loss == nullptr ? 1.0f : a.grad_loss[row * a.grad_loss_stride];
}

// Whether the logits are kept in L2 out of the way of the results: where they alone would fill it, and the results go
// elsewhere.
inline bool keeps_logits(const CrossEntropyWithGradArgs& a) {
  return a.dlogits != a.in.logits && a.in.rows * a.in.cols * size_of(a.in.dtype) >= kL2Bytes;
}

__device__ __forceinline__ uint64_t load_policy(bool keep) {
  return keep ? ptx::policy_evict_last() : ptx::policy_evict_normal();
}

// Of logits that the gradient may overwrite.
template <class T>
__device__ __forceinline__ void load_logits(Pack<T>& to, const T* from, uint64_t policy) {
  reinterpret_cast<uint4&>(to) = ptx::load_once(reinterpret_cast<const uint4*>(from), policy);
}

}  // namespace warpsmith
