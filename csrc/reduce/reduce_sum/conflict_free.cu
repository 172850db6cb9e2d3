// Sum of everything, by a tree over neighbouring words.
//   Against `interleaved`: a thread adds what lies half of the remaining values away, so that a warp reads 32 words in a
//   row, each in a bank of its own. Bound: half of the threads only load a value and then wait.
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {
namespace {

template <class From, class To>
__global__ void __launch_bounds__(kClimbThreads) reduce_sum_conflict_free_kernel(const From* x, To* y, int64_t n) {
  __shared__ From partial[kClimbThreads];
  const int tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  partial[tid] = i < n ? x[i] : From{};
  __syncthreads();

  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (tid < half) partial[tid] += partial[tid + half];
    __syncthreads();
  }
  if (tid == 0) y[blockIdx.x] = static_cast<To>(partial[0]);
}

struct Kernel {
  template <class From, class To>
  static constexpr auto of() {
    return &reduce_sum_conflict_free_kernel<From, To>;
  }
};

void launch(const ReduceSumArgs& a, cudaStream_t stream) { climb<Kernel>(a, kClimbThreads, stream); }

const Register<ReduceSumArgs> registered{"conflict_free", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
