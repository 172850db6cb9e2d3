// Sum of everything, two values an access.
//   Against `shuffle`: half of the loads, and a 16-bit accumulator adds two values an instruction. Bound: still the
//   number of load instructions, at 2 to 8 bytes each.
#include "reduce/reduce_sum/dtypes.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPairs = 16;

template <class T, class A>
__global__ void __launch_bounds__(kThreads) reduce_sum_x2_kernel(const Span<T, 2> x, Total<T>* partial) {
  __shared__ BlockReduceStorage<Total<T>, kThreads> shared;
  const int64_t start = int64_t{blockIdx.x} * (kThreads * kPairs);
  Vec<T, 2> pairs[kPairs];
  load_strided(pairs, x, start + threadIdx.x, kThreads, start + kThreads * kPairs <= x.accesses);

  ThreadSum<T, A, 2> sum;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) sum.add(pairs[i]);
  Total<T> total = sum.total();
  if (blockIdx.x == 0 && threadIdx.x < x.ends()) total += as_total(x.end(threadIdx.x));
  total = block_reduce<kThreads>(total, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

const char* takes(const ReduceSumArgs&) { return nullptr; }

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class A>() {
    const Span<T, 2> x(a.x, a.n);
    auto* partial = static_cast<Total<T>*>(a.workspace);
    const int64_t blocks = std::max<int64_t>(ceil_div(x.accesses, kThreads * kPairs), 1);
    warpsmith::launch<&reduce_sum_x2_kernel<T, A>>({static_cast<unsigned>(blocks), kThreads}, stream, x, partial);
    launch_total<Result<T>>(partial, blocks, a.y, stream);
  });
}

const Register<ReduceSumArgs> registered{"x2", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
