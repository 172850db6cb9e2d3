// The launch that adds up what slices of k left. Several rungs make it, so that skinny_sum.cu compiles it once for all of
// them.
#pragma once

#include "device/start_early.h"
#include "gemm/skinny_sum.cuh"
#include "host/ceil_div.h"
#include "host/launch.h"

namespace warpsmith {

inline constexpr int kSkinnySumThreads = 128;

template <class X, class Args>
__global__ void __launch_bounds__(kSkinnySumThreads) skinny_sum_kernel(Args a) {
  start_early();
  const int64_t row = int64_t{blockIdx.x} * kSkinnySumThreads + threadIdx.x;
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
  const auto blocks = static_cast<unsigned>(ceil_div(a.m, kSkinnySumThreads));
  launch<&skinny_sum_kernel<X, Args>>(
      {.grid = {blocks, static_cast<unsigned>(a.vectors)}, .block = kSkinnySumThreads, .early = true}, stream, a);
}

}  // namespace warpsmith
