// The second launch where k was cut into slices: adds up what they left, always in the same order.
#pragma once

#include "device/convert.h"
#include "gemm/skinny.h"
#include "host/launch.h"

namespace warpsmith {

// One output, or one slice's part of it.
template <class X>
__device__ __forceinline__ void put_sum(const SkinnyArgs& a, int split, int vector, int64_t row, float sum) {
  if (a.partial != nullptr) {
    a.partial[(int64_t{split} * a.vectors + vector) * a.m + row] = sum;
  } else {
    const float scale = a.scale != nullptr ? a.scale[row * a.scale_step] : 1.0f;
    static_cast<X*>(a.y)[vector * a.y_row + row] = from_float<X>(a.scale != nullptr ? sum * scale : sum);
  }
}

namespace {

constexpr int kSumThreads = 128;

template <class X>
__global__ void __launch_bounds__(kSumThreads) skinny_sum_kernel(SkinnyArgs a) {
  const int64_t row = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (row >= a.m) return;
  const float* partial = a.partial + blockIdx.y * a.m + row;
  float sum = 0.0f;
#pragma unroll 8
  for (int split = 0; split < a.splits; ++split) sum += partial[int64_t{split} * a.vectors * a.m];
  a.partial = nullptr;
  put_sum<X>(a, 0, static_cast<int>(blockIdx.y), row, sum);
}

template <class X>
void launch_skinny_sum(const SkinnyArgs& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((a.m + kSumThreads - 1) / kSumThreads);
  launch<&skinny_sum_kernel<X>>({{blocks, static_cast<unsigned>(a.vectors)}, kSumThreads}, stream, a);
}

}  // namespace
}  // namespace warpsmith
