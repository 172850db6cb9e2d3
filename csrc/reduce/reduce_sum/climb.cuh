// What the first rungs share, Harris' climb: a block leaves one sum, and the kernel runs again on the sums. Those are
// double, so that the error is that of one block, whatever the number of levels.
// M. Harris, "Optimizing Parallel Reduction in CUDA",
// https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf
#pragma once

#include "host/launch.h"
#include "host/registry.h"
#include "reduce/reduce_sum/reduce_sum.h"
#include "reduce/span.cuh"

namespace warpsmith {

inline constexpr int kClimbThreads = 256;

// Launches the kernel Kernel::of<From, To>(), called with (const From* x, To* y, int64_t n), until one sum is left. Its
// blocks of kClimbThreads threads take `per_block` values each.
template <class Kernel>
void climb(const ReduceSumArgs& a, int64_t per_block, cudaStream_t stream) {
  int64_t n = a.n, blocks = ceil_div(n, per_block);
  const auto pass = [&]<class From, class To>(const From* from, To* to) {
    launch<Kernel::template of<From, To>()>({static_cast<unsigned>(blocks), kClimbThreads}, stream, from, to, n);
  };
  const float* x = static_cast<const float*>(a.x);
  float* y = static_cast<float*>(a.y);
  double* sums = static_cast<double*>(a.workspace);
  if (blocks == 1) return pass(x, y);
  pass(x, sums);
  for (n = blocks, blocks = ceil_div(n, per_block); blocks > 1; n = blocks, blocks = ceil_div(n, per_block)) {
    pass(static_cast<const double*>(sums), sums + n);
    sums += n;
  }
  pass(static_cast<const double*>(sums), y);
}

inline const char* takes_f32(const ReduceSumArgs& a) { return a.dtype == Dtype::f32 ? nullptr : "takes f32"; }

}  // namespace warpsmith
