// Sum of everything, by a tree in shared memory.
//   Against `atomic`: a block adds up 256 values among its threads, and the order is always the same. Every second
//   thread adds its right neighbour, then every fourth, and so on. Bound: the warps diverge, most of their threads have
//   nothing to do, and the remainder of a division by a number that is not known decides which.
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {
namespace {

__global__ void __launch_bounds__(kClimbThreads) reduce_sum_baseline_kernel(const float* x, float* y, int64_t n) {
  __shared__ float partial[kClimbThreads];
  const int tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  partial[tid] = i < n ? x[i] : 0.0f;
  __syncthreads();

  for (int distance = 1; distance < blockDim.x; distance *= 2) {
    if (tid % (2 * distance) == 0) partial[tid] += partial[tid + distance];
    __syncthreads();
  }
  if (tid == 0) y[blockIdx.x] = partial[0];
}

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  climb<&reduce_sum_baseline_kernel>(a, kClimbThreads, stream);
}

const Register<ReduceSumArgs> registered{"baseline", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
