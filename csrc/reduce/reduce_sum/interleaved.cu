// Sum of everything, by a tree whose first threads do the work.
//   Against `baseline`: the same pairs are added, by neighbouring threads, so that whole warps work or rest, and no
//   remainder is computed. Bound: the threads of a warp are a power of two of words apart, in few of the banks of shared
//   memory.
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {
namespace {

template <class From, class To>
__global__ void __launch_bounds__(kClimbThreads) reduce_sum_interleaved_kernel(const From* x, To* y, int64_t n) {
  __shared__ From partial[kClimbThreads];
  const int tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  partial[tid] = i < n ? x[i] : From{};
  __syncthreads();

  for (int distance = 1; distance < blockDim.x; distance *= 2) {
    const int at = 2 * distance * tid;
    if (at < blockDim.x) partial[at] += partial[at + distance];
    __syncthreads();
  }
  if (tid == 0) y[blockIdx.x] = static_cast<To>(partial[0]);
}

struct Kernel {
  template <class From, class To>
  static constexpr auto of() {
    return &reduce_sum_interleaved_kernel<From, To>;
  }
};

void launch(const ReduceSumArgs& a, cudaStream_t stream) { climb<Kernel>(a, kClimbThreads, stream); }

const Register<ReduceSumArgs> registered{"interleaved", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
