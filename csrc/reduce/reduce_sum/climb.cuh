// What the first rungs share, Harris' climb in f32: a block leaves one sum, and the kernel runs again on the sums.
// M. Harris, "Optimizing Parallel Reduction in CUDA",
// https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf
#pragma once

#include "host/launch.h"
#include "host/registry.h"
#include "reduce/reduce_sum/reduce_sum.h"
#include "reduce/span.cuh"

namespace warpsmith {

inline constexpr int kClimbThreads = 256;

// Launches `kernel`, of kClimbThreads threads that take `per_block` values together, until one sum is left.
template <auto kernel>
void climb(const ReduceSumArgs& a, int64_t per_block, cudaStream_t stream) {
  const float* from = static_cast<const float*>(a.x);
  float* to = static_cast<float*>(a.workspace);
  for (int64_t n = a.n, blocks = 0; blocks != 1; n = blocks) {
    blocks = ceil_div(n, per_block);
    if (blocks == 1) to = static_cast<float*>(a.y);
    launch<kernel>({static_cast<unsigned>(blocks), kClimbThreads}, stream, from, to, n);
    from = to;
    to += blocks;
  }
}

inline const char* takes_f32(const ReduceSumArgs& a) { return a.dtype == Dtype::f32 ? nullptr : "takes f32"; }

}  // namespace warpsmith
