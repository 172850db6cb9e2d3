// Sum of everything, the last warp without barriers of the block.
//   Against `halved`: once 64 values are left, one warp takes them on by itself and synchronises only with itself. All of
//   its lanes add; what the upper ones compute is never used. Bound: the loop above it.
#include "device/warp.h"
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {
namespace {

__global__ void __launch_bounds__(kClimbThreads) reduce_sum_unroll_warp_kernel(const float* x, float* y, int64_t n) {
  __shared__ float partial[kClimbThreads];
  const int tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * (2 * blockDim.x) + tid;
  partial[tid] = (i < n ? x[i] : 0.0f) + (i + blockDim.x < n ? x[i + blockDim.x] : 0.0f);
  __syncthreads();

  for (int half = blockDim.x / 2; half > kWarp; half /= 2) {
    if (tid < half) partial[tid] += partial[tid + half];
    __syncthreads();
  }
  if (tid >= kWarp) return;
#pragma unroll
  for (int half = kWarp; half > 0; half /= 2) {
    const float other = partial[tid + half];
    __syncwarp();
    partial[tid] += other;
    __syncwarp();
  }
  if (tid == 0) y[blockIdx.x] = partial[0];
}

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  climb<&reduce_sum_unroll_warp_kernel>(a, 2 * kClimbThreads, stream);
}

const Register<ReduceSumArgs> registered{"unroll_warp", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
