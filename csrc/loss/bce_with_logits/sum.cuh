// How the rungs of bce_with_logits_forward sum: a thread the losses of one access in f32, and these in f64, which costs
// nothing beside the loads; blocks in f64 and in an order that is always the same.
#pragma once

#include "device/block.h"
#include "host/launch.h"
#include "host/registry.h"
#include "loss/bce.cuh"
#include "loss/bce_with_logits/bce_with_logits_forward.h"

namespace warpsmith {

inline constexpr int kBceThreads = 256;

// Every thread of the block must call.
__device__ __forceinline__ void leave_partial(const BceWithLogitsForwardArgs& a, double sum) {
  __shared__ BlockReduceStorage<double, kBceThreads> shared;
  const double total = block_reduce(sum, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = total;
}

template <int threads>
__global__ void __launch_bounds__(threads) bce_with_logits_join_kernel(const BceWithLogitsForwardArgs a) {
  __shared__ BlockReduceStorage<double, threads> shared;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < a.blocks; i += threads) sum += a.partial[i];
  sum = block_reduce(sum, shared);
  if (threadIdx.x == 0) a.loss[0] = static_cast<float>(sum * a.scale);
}

// Launches `kernel<std::true_type>` and the join of its partial sums, or `kernel<std::false_type>` on as many blocks as
// give each thread `each` values at a time. body.template operator()<Sums>(config)
template <class Body>
void launch_bce(const BceWithLogitsForwardArgs& a, int each, cudaStream_t stream, Body&& body) {
  constexpr int kJoinThreads = 512;
  if (a.sums) {
    body.template operator()<std::true_type>(LaunchConfig{dim3(static_cast<unsigned>(a.blocks)), kBceThreads});
    warpsmith::launch<&bce_with_logits_join_kernel<kJoinThreads>>({1, kJoinThreads}, stream, a);
  } else {
    const int64_t stretch = int64_t{kBceThreads} * each;
    body.template operator()<std::false_type>(LaunchConfig{row_grid((a.n + stretch - 1) / stretch), kBceThreads});
  }
}

}  // namespace warpsmith
