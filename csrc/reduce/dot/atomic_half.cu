// Dot product in f16, blocks added by an atomic on one half.
//   Each block adds its sum to the total in memory. Not deterministic and not precise: see dot/atomic.cuh. Bound: memory
//   adds 32-bit words, so that an addition to half of one is a loop of compare and swap, which every other block upsets.
#include "reduce/dot/atomic.cuh"

namespace warpsmith {
namespace {

__global__ void __launch_bounds__(kAtomicThreads)
    dot_atomic_half_kernel(const f16* x, const f16* y, f16* total, int64_t n) {
  const f16 sum = block_dot(x, y, n);
  if (threadIdx.x == 0) atomicAdd(total, sum);
}

void launch(const DotArgs& a, cudaStream_t stream) {
  launch_atomic(a, stream, [&](__half2* total) {
    const auto blocks = static_cast<unsigned>(ceil_div(a.n, kDotValuesPerBlock));
    warpsmith::launch<&dot_atomic_half_kernel>({blocks, kAtomicThreads}, stream, static_cast<const f16*>(a.x),
                                               static_cast<const f16*>(a.y), reinterpret_cast<f16*>(total), a.n);
  });
}

const Register<DotArgs> registered{"atomic_half", /*min_sm=*/80, takes_f16, launch};

}  // namespace
}  // namespace warpsmith
