// What becomes of a finished sum, and the second launch where k was cut into slices: it adds up what they left, always
// in the same order.
//   Kernels are compiled for `Args`: SkinnyArgs, or what derives from it and finishes sums in a way of its own, by
//   overloads of `read_ahead` and `finish_sum`.
#pragma once

#include "device/convert.h"
#include "device/start_early.h"
#include "gemm/skinny.h"
#include "host/ceil_div.h"
#include "host/launch.h"

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

namespace {

constexpr int kSumThreads = 128;

template <class X, class Args>
__global__ void __launch_bounds__(kSumThreads) skinny_sum_kernel(Args a) {
  start_early();
  const int64_t row = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (row >= a.m) return;
  const float* partial = a.partial + blockIdx.y * a.m + row;
  const float ahead = read_ahead<X>(a, static_cast<int>(blockIdx.y), row);
  float sum = 0.0f;
#pragma unroll 8
  for (int split = 0; split < a.splits; ++split) sum += partial[int64_t{split} * a.vectors * a.m];
  a.partial = nullptr;
  put_sum<X>(a, 0, static_cast<int>(blockIdx.y), row, sum, ahead);
}

template <class X, class Args>
void launch_skinny_sum(const Args& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.m, kSumThreads));
  launch<&skinny_sum_kernel<X, Args>>(
      {.grid = {blocks, static_cast<unsigned>(a.vectors)}, .block = kSumThreads, .early = true}, stream, a);
}

}  // namespace
}  // namespace warpsmith
