// Sum of everything, 128-bit accesses.
//   Against `x2`: 16 bytes a load, four of them under way per thread; what lies before the first aligned address and
//   after the last access is added value by value, so that any alignment will do. Four bytes of an i8 are one
//   instruction (dp4a). Bound: DRAM, and the second launch, for which the GPU drains.
#include "reduce/reduce_sum/dtypes.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPacks = 4;

template <class T, class A>
__global__ void __launch_bounds__(kThreads) reduce_sum_pack_kernel(const Span<T, kPack<T>> x, Total<T>* partial) {
  __shared__ BlockReduceStorage<Total<T>, kThreads> shared;
  const int64_t start = int64_t{blockIdx.x} * (kThreads * kPacks);
  Pack<T> packs[kPacks];
  load_strided(packs, x, start + threadIdx.x, kThreads, start + kThreads * kPacks <= x.accesses);

  ThreadSum<T, A, kPack<T>> sum;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) sum.add(packs[i]);
  Total<T> total = sum.total();
  if (blockIdx.x == 0 && threadIdx.x < x.ends()) total += as_total(x.end(threadIdx.x));
  total = block_reduce<kThreads>(total, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

const char* takes(const ReduceSumArgs&) { return nullptr; }

void launch(const ReduceSumArgs& a, cudaStream_t stream) {
  visit_accumulators(a, [&]<class T, class A>() {
    const Span<T, kPack<T>> x(a.x, a.n);
    auto* partial = static_cast<Total<T>*>(a.workspace);
    const int64_t blocks = std::max<int64_t>(ceil_div(x.accesses, kThreads * kPacks), 1);
    warpsmith::launch<&reduce_sum_pack_kernel<T, A>>({static_cast<unsigned>(blocks), kThreads}, stream, x, partial);
    launch_total<Result<T>>(partial, blocks, a.y, stream);
  });
}

const Register<ReduceSumArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
