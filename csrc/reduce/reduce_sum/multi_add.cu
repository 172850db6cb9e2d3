// Sum of everything, many values to a thread.
//   Against `unroll_full`: a thread adds up sixteen values before the tree, all of their loads under way together, so
//   that the tree costs little beside them. Bound: the tree's barriers still, and 4 bytes a load.
#include "reduce/reduce_sum/tree.cuh"

namespace warpsmith {
namespace {

constexpr int kValues = 16;

template <class From, class To>
__global__ void __launch_bounds__(kClimbThreads) reduce_sum_multi_add_kernel(const From* x, To* y, int64_t n) {
  __shared__ From partial[kClimbThreads];
  const int64_t first = int64_t{blockIdx.x} * (kClimbThreads * kValues) + threadIdx.x;
  From values[kValues];
#pragma unroll
  for (int k = 0; k < kValues; ++k) {
    const int64_t i = first + k * kClimbThreads;
    values[k] = i < n ? x[i] : From{};
  }
#pragma unroll
  for (int k = 1; k < kValues; ++k) values[0] += values[k];
  const From sum = tree_sum(values[0], partial);
  if (threadIdx.x == 0) y[blockIdx.x] = static_cast<To>(sum);
}

struct Kernel {
  template <class From, class To>
  static constexpr auto of() {
    return &reduce_sum_multi_add_kernel<From, To>;
  }
};

void launch(const ReduceSumArgs& a, cudaStream_t stream) { climb<Kernel>(a, kClimbThreads * kValues, stream); }

const Register<ReduceSumArgs> registered{"multi_add", /*min_sm=*/80, takes_f32, launch};

}  // namespace
}  // namespace warpsmith
