// Dot product, several loads under way.
//   Against `scalar`: as many values of each operand as fill 16 bytes are asked for before the first is needed. Takes
//   operands of any alignment. Bound: the number of load instructions.
#include "reduce/dot/thread_dot.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) dot_unroll_kernel(const Span<T, 1> x, const Span<T, 1> y, double* partial) {
  constexpr int kLoads = kPack<T>, kStep = kThreads * kLoads;
  __shared__ BlockReduceStorage<double, kThreads> shared;
  const int64_t start = int64_t{blockIdx.x} * kDotValuesPerBlock;
  ThreadDot<T, 1> sum;
#pragma unroll 1
  for (int64_t at = start; at < start + kDotValuesPerBlock; at += kStep) {
    const bool whole = at + kStep <= x.accesses;
    Vec<T, 1> a[kLoads], b[kLoads];
    load_strided(a, x, at + threadIdx.x, kThreads, whole);
    load_strided(b, y, at + threadIdx.x, kThreads, whole);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum.add(a[i], b[i]);
  }
  const double total = block_reduce<kThreads>(sum.total(), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

void launch(const DotArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const Span<T, 1> x(a.x, a.n), y(a.y, a.n);
    auto* partial = static_cast<double*>(a.workspace);
    const int64_t blocks = ceil_div(a.n, kDotValuesPerBlock);
    warpsmith::launch<&dot_unroll_kernel<T>>({static_cast<unsigned>(blocks), kThreads}, stream, x, y, partial);
    launch_total<T>(partial, blocks, a.out, stream);
  });
}

const Register<DotArgs> registered{"unroll", /*min_sm=*/80, needs_f32_accumulator, launch};

}  // namespace
}  // namespace warpsmith
