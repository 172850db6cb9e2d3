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

// loss = scale * sum of a.partial: the join, in join.cu.
void launch_bce_join(const BceWithLogitsForwardArgs& a, cudaStream_t stream);

// Launches `kernel<std::true_type>` and the join of its partial sums, or `kernel<std::false_type>` on as many blocks as
// give each thread `each` values at a time. body.template operator()<Sums>(config)
template <class Body>
void launch_bce(const BceWithLogitsForwardArgs& a, int each, cudaStream_t stream, Body&& body) {
  if (a.sums) {
    body.template operator()<std::true_type>(LaunchConfig{dim3(static_cast<unsigned>(a.blocks)), kBceThreads});
    launch_bce_join(a, stream);
  } else {
    const int64_t stretch = int64_t{kBceThreads} * each;
    body.template operator()<std::false_type>(LaunchConfig{row_grid((a.n + stretch - 1) / stretch), kBceThreads});
  }
}

}  // namespace warpsmith
