// Sum of everything, by a tree in shared memory.
//   Against `atomic`: a block adds up 256 values among its threads, and the order is always the same. Every second
//   thread adds its right neighbour, then every fourth, and so on. Bound: the warps diverge, most of their threads have
//   nothing to do, and the remainder of a division by a number that is not known decides which.
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {
namespace {

template <class From, class To>
__global__ void __launch_bounds__(kClimbThreads) reduce_sum_baseline_kernel(const From* x, To* y, int64_t n) {
  __shared__ From partial[kClimbThreads];
  const int tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  partial[tid] = i < n ? x[i] : From{};
  __syncthreads();

  for (int distance = 1; distance < blockDim.x; distance *= 2) {
    if (tid % (2 * distance) == 0) partial[tid] += partial[tid + distance];
    __syncthreads();
  }
  if (tid == 0) y[blockIdx.x] = static_cast<To>(partial[0]);
}

struct Kernel {
  template <class From, class To>
  static constexpr auto of() {
    return &reduce_sum_baseline_kernel<From, To>;
  }
};

void launch(const ReduceSumArgs& a, cudaStream_t stream) { climb<Kernel>(a, kClimbThreads, stream); }

const Register<ReduceSumArgs> registered{"baseline", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
