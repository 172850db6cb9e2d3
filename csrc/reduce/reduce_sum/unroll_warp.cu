// Sum of everything, the last warp without barriers of the block.
//   Against `halved`: once 64 values are left, one warp takes them on by itself and synchronises only with itself. All of
//   its lanes add; what the upper ones compute is never used. Bound: the loop above it.
#include "device/warp.h"
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {
namespace {

template <class From, class To>
__global__ void __launch_bounds__(kClimbThreads) reduce_sum_unroll_warp_kernel(const From* x, To* y, int64_t n) {
  __shared__ From partial[kClimbThreads];
  const int tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * (2 * blockDim.x) + tid;
  partial[tid] = (i < n ? x[i] : From{}) + (i + blockDim.x < n ? x[i + blockDim.x] : From{});
  __syncthreads();

  for (int half = blockDim.x / 2; half > kWarp; half /= 2) {
    if (tid < half) partial[tid] += partial[tid + half];
    __syncthreads();
  }
  if (tid >= kWarp) return;
#pragma unroll
  for (int half = kWarp; half > 0; half /= 2) {
    const From other = partial[tid + half];
    __syncwarp();
    partial[tid] += other;
    __syncwarp();
  }
  if (tid == 0) y[blockIdx.x] = static_cast<To>(partial[0]);
}

struct Kernel {
  template <class From, class To>
  static constexpr auto of() {
    return &reduce_sum_unroll_warp_kernel<From, To>;
  }
};

void launch(const ReduceSumArgs& a, cudaStream_t stream) { climb<Kernel>(a, 2 * kClimbThreads, stream); }

const Register<ReduceSumArgs> registered{"unroll_warp", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
