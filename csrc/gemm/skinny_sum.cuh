// What becomes of a finished sum, and the second launch where k was cut into slices: it adds up what they left, always
// in the same order.
//   Kernels are compiled for `Args`: SkinnyArgs, or what derives from it and finishes sums in a way of its own, by
//   overloads of `read_ahead` and `finish_sum`.
#pragma once

#include <cuda_runtime.h>

#include "device/convert.h"
#include "gemm/skinny.h"

namespace warpsmith {

// What a result takes from memory besides its sum, for kernels to ask for while they still add.
template <class X>
__device__ __forceinline__ float read_ahead(const SkinnyArgs&, int /*vector*/, int64_t /*row*/) {
  return 0.0f;
}

template <class X>
__device__ __forceinline__ X finish_sum(const SkinnyArgs& a, int64_t row, float sum, float /*ahead*/) {
  const float scale = a.scale != nullptr ? a.scale[row * a.scale_step] : 1.0f;
  return from_float<X>(a.scale != nullptr ? sum * scale : sum);
}

// One output, or one slice's part of it, which takes nothing but the sum.
template <class X, class Args>
__device__ __forceinline__ void put_sum(const Args& a, int split, int vector, int64_t row, float sum,
                                        float ahead = 0.0f) {
  if (a.partial != nullptr) {
    a.partial[(int64_t{split} * a.vectors + vector) * a.m + row] = sum;
  } else {
    static_cast<X*>(a.y)[vector * a.y_row + row] = finish_sum<X>(a, row, sum, ahead);
  }
}

// The second launch. See launch_skinny_sum.cuh.
template <class X, class Args>
void launch_skinny_sum(const Args& a, cudaStream_t stream);

}  // namespace warpsmith
