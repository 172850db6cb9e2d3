// Sum of everything, by warp shuffles.
//   Against `multi_add`: lanes exchange registers instead of shared memory, and one barrier is left. A second launch, of
//   one block, adds up what the blocks leave. From here on for every dtype: a thread's values in the accumulator that the
//   variant names, all else in double or int64. Bound: the number of load instructions, one value each.
#include "reduce/reduce_sum/dtypes.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kValues = 16;

template <class T, class A>
__global__ void __launch_bounds__(kThreads) reduce_sum_shuffle_kernel(const Span<T, 1> x, Total<T>* partial) {
  __shared__ BlockReduceStorage<Total<T>, kThreads> shared;
  const int64_t start = int64_t{blockIdx.x} * (kThreads * kValues);
  Vec<T, 1> values[kValues];
  load_strided(values, x, start + threadIdx.x, kThreads, start + kThreads * kValues <= x.accesses);

  ThreadSum<T, A, 1> sum;
#pragma unroll
  for (int i = 0; i < kValues; ++i) sum.add(values[i]);
  const Total<T> total = block_reduce<kThreads>(sum.total(), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

const char* takes(const ReduceSumArgs&) { return nullptr; }

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class A>() {
    const Span<T, 1> x(a.x, a.n);
    auto* partial = static_cast<Total<T>*>(a.workspace);
    const int64_t blocks = ceil_div(x.accesses, kThreads * kValues);
    warpsmith::launch<&reduce_sum_shuffle_kernel<T, A>>({static_cast<unsigned>(blocks), kThreads}, stream, x, partial);
    launch_total<Result<T>>(partial, blocks, a.y, stream);
  });
}

const Register<ReduceSumArgs> registered{"shuffle", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
