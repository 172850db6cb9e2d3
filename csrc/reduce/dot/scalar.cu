// Dot product, one value at a time.
//   A thread adds up sixteen products, a block those of its threads by shuffles; a second launch, of one block, adds up
//   what the blocks leave. Bound: the latency of memory, since a thread waits for two values before it asks for the next.
#include "reduce/dot/thread_dot.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) dot_scalar_kernel(const T* x, const T* y, double* partial, int64_t n) {
  __shared__ BlockReduceStorage<double, kThreads> shared;
  const int64_t start = int64_t{blockIdx.x} * kDotValuesPerBlock;
  const int64_t end = start + kDotValuesPerBlock < n ? start + kDotValuesPerBlock : n;
  ThreadDot<T, 1> sum;
#pragma unroll 1
  for (int64_t i = start + threadIdx.x; i < end; i += kThreads) {
    Vec<T, 1> a, b;
    load(a, x + i);
    load(b, y + i);
    sum.add(a, b);
  }
  const double total = block_reduce<kThreads>(sum.total(), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

void launch(const DotArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    auto* partial = static_cast<double*>(a.workspace);
    const int64_t blocks = ceil_div(a.n, kDotValuesPerBlock);
    warpsmith::launch<&dot_scalar_kernel<T>>({static_cast<unsigned>(blocks), kThreads}, stream,
                                             static_cast<const T*>(a.x), static_cast<const T*>(a.y), partial, a.n);
    launch_total<T>(partial, blocks, a.out, stream);
  });
}

const Register<DotArgs> registered{"scalar", /*min_sm=*/80, needs_f32_accumulator, launch};

}  // namespace
}  // namespace warpsmith
