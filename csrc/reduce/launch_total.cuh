// The launch that adds up the sums of blocks. Several rungs make it, so that total.cu compiles it once for all of them.
#pragma once

#include "device/block.h"
#include "device/start_early.h"
#include "host/launch.h"
#include "reduce/total.cuh"

namespace warpsmith {

template <int threads, class To, class Sum>
__global__ void __launch_bounds__(threads) reduce_total_kernel(const Sum* partial, int64_t count, To* y) {
  __shared__ BlockReduceStorage<Sum, threads> shared;
  start_early();
  const Sum total = block_reduce<threads>(add_partials<threads>(partial, count), shared);
  if (threadIdx.x == 0) *y = rounded<To>(total);
}

template <class To, int threads, class Sum>
void launch_total(const Sum* partial, int64_t count, void* y, cudaStream_t stream, bool early) {
  launch<&reduce_total_kernel<threads, To, Sum>>({.grid = 1, .block = threads, .early = early}, stream, partial, count,
                                                 static_cast<To*>(y));
}

}  // namespace warpsmith
