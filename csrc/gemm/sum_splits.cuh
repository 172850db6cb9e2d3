// The second kernel of split-K. Several rungs launch it, so that sum_splits.cu compiles it once for all of them.
#pragma once

#include "device/start_early.h"
#include "device/vec.h"
#include "gemm/split.cuh"

namespace warpsmith {

// `width` neighbouring values a thread. Slices are read four at a time, but added in their order.
template <class T, int width>
__device__ __forceinline__ void sum_of_thread(const GemmArgs& p, const int splits) {
  const int64_t total = p.batch * p.m * p.n;
  const int64_t first = (int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * width;
  if (first >= total) return;
  const float* partial = static_cast<const float*>(p.workspace) + first;
  float sum[width] = {};
  int slice = 0;
  const auto add = [&]<int count>() {
    Vec<float, width> values[count];
#pragma unroll
    for (int i = 0; i < count; ++i) load(values[i], partial + (slice + i) * total);
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int j = 0; j < width; ++j) sum[j] += values[i][j];
    }
    slice += count;
  };
  while (slice + 4 <= splits) add.template operator()<4>();
  while (slice < splits) add.template operator()<1>();

  const int64_t col = first % p.n, row = first / p.n % p.m, batch = first / p.n / p.m;
  Vec<T, width> out;
  finish(out, p, sum, batch, row, col);
  store(static_cast<T*>(p.d) + first, out);
}

template <class T, int width>
__global__ void __launch_bounds__(kSumThreads) sum_splits_kernel(const GemmArgs p, const int splits) {
  sum_of_thread<T, width>(p, splits);
}

// Behind a kernel that lets the next one take its place early.
template <class T, int width>
__global__ void __launch_bounds__(kSumThreads) sum_splits_early_kernel(const GemmArgs p, const int splits) {
  start_early();
  sum_of_thread<T, width>(p, splits);
}

template <class T>
void sum_splits_early(const GemmArgs& p, int splits, cudaStream_t stream) {
  const auto run = [&]<int width>() {
    const int64_t blocks = ceil_div(ceil_div(p.batch * p.m * p.n, width), kSumThreads);
    const LaunchConfig config{.grid = static_cast<unsigned>(blocks), .block = kSumThreads, .early = true};
    launch<&sum_splits_early_kernel<T, width>>(config, stream, p, splits);
  };
  const bool wide = p.n % 4 == 0 && reinterpret_cast<uintptr_t>(p.d) % (4 * sizeof(T)) == 0;
  wide ? run.template operator()<4>() : run.template operator()<1>();
}

template <class T>
void sum_splits(const GemmArgs& p, int splits, cudaStream_t stream) {
  const auto run = [&]<int width>() {
    const int64_t blocks = ceil_div(ceil_div(p.batch * p.m * p.n, width), kSumThreads);
    launch<&sum_splits_kernel<T, width>>({static_cast<unsigned>(blocks), kSumThreads}, stream, p, splits);
  };
  const bool wide = p.n % 4 == 0 && reinterpret_cast<uintptr_t>(p.d) % (4 * sizeof(T)) == 0;
  wide ? run.template operator()<4>() : run.template operator()<1>();
}

}  // namespace warpsmith
