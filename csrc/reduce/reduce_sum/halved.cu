// Sum of everything, the first level of the tree taken while loading.
//   Against `conflict_free`: a thread loads two values and adds them, so that none only loads, and half of the blocks
//   do. Bound: loops and barriers; the last levels keep one warp busy and all others at the barriers.
#include "reduce/reduce_sum/climb.cuh"

namespace warpsmith {
namespace {

template <class From, class To>
__global__ void __launch_bounds__(kClimbThreads) reduce_sum_halved_kernel(const From* x, To* y, int64_t n) {
  __shared__ From partial[kClimbThreads];
  const int tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * (2 * blockDim.x) + tid;
  partial[tid] = (i < n ? x[i] : From{}) + (i + blockDim.x < n ? x[i + blockDim.x] : From{});
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
    return &reduce_sum_halved_kernel<From, To>;
  }
};

void launch(const ReduceSumArgs& a, cudaStream_t stream) { climb<Kernel>(a, 2 * kClimbThreads, stream); }

const Register<ReduceSumArgs> registered{"halved", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
