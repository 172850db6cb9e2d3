// Dot product, two 16-bit values an access.
//   Against `scalar`: half of the loads, at 4 bytes each. Bound: the latency of memory still.
#include "reduce/dot/thread_dot.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPairs = 16, kBlockPairs = kThreads * kPairs;
static_assert(2 * kBlockPairs >= kDotValuesPerBlock, "the workspace counts on it");

template <class T>
__global__ void __launch_bounds__(kThreads) dot_x2_kernel(const Span<T, 2> x, const Span<T, 2> y, double* partial) {
  __shared__ BlockReduceStorage<double, kThreads> shared;
  const int64_t start = int64_t{blockIdx.x} * kBlockPairs;
  const int64_t end = start + kBlockPairs < x.accesses ? start + kBlockPairs : x.accesses;
  ThreadDot<T, 2> sum;
#pragma unroll 1
  for (int64_t i = start + threadIdx.x; i < end; i += kThreads) {
    Vec<T, 2> a, b;
    load(a, x.at(i));
    load(b, y.at(i));
    sum.add(a, b);
  }
  const double total = block_reduce<kThreads>(sum.total() + dot_of_ends(x, y), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

const char* takes(const DotArgs& a) {
  if (a.dtype == Dtype::f32) return "takes f16 and bf16";
  if (const char* reason = needs_pairs(a)) return reason;
  return needs_f32_accumulator(a);
}

void launch(const DotArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    if constexpr (sizeof(T) == 2) {
      const Span<T, 2> x(a.x, a.n), y(a.y, a.n);
      auto* partial = static_cast<double*>(a.workspace);
      const int64_t blocks = std::max<int64_t>(ceil_div(x.accesses, kBlockPairs), 1);
      warpsmith::launch<&dot_x2_kernel<T>>({static_cast<unsigned>(blocks), kThreads}, stream, x, y, partial);
      launch_total<T>(partial, blocks, a.out, stream);
    }
  });
}

const Register<DotArgs> registered{"x2", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
