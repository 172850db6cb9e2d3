// Sum of everything, the tree unrolled.
//   Against `unroll_warp`: the size of the block is a constant, so that every level is straight code with its distance
//   as an immediate. Bound: a block does little, and most of that is its tree.
#include "reduce/reduce_sum/tree.cuh"

namespace warpsmith {
namespace {

template <class From, class To>
__global__ void __launch_bounds__(kClimbThreads) reduce_sum_unroll_full_kernel(const From* x, To* y, int64_t n) {
  __shared__ From partial[kClimbThreads];
  const int64_t i = int64_t{blockIdx.x} * (2 * kClimbThreads) + threadIdx.x;
  const From value = (i < n ? x[i] : From{}) + (i + kClimbThreads < n ? x[i + kClimbThreads] : From{});
  const From sum = tree_sum(value, partial);
  if (threadIdx.x == 0) y[blockIdx.x] = static_cast<To>(sum);
}

struct Kernel {
  template <class From, class To>
  static constexpr auto of() {
    return &reduce_sum_unroll_full_kernel<From, To>;
  }
};

void launch(const ReduceSumArgs& a, cudaStream_t stream) { climb<Kernel>(a, 2 * kClimbThreads, stream); }

const Register<ReduceSumArgs> registered{"unroll_full", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
