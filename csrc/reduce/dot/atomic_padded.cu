// Dot product in f16, blocks added by an atomic on a pair whose other half is zero.
//   Against `atomic_half`: the same sum, sent as a pair with a zero, which memory adds in one operation. Not
//   deterministic and not precise: see dot/atomic.cuh. Bound: one value a load.
// The trick of PyTorch's fastAtomicAdd,
// https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/KernelUtils.cuh
#include "reduce/dot/atomic.cuh"

namespace warpsmith {
namespace {

__global__ void __launch_bounds__(kAtomicThreads)
    dot_atomic_padded_kernel(const f16* x, const f16* y, __half2* total, int64_t n) {
  const f16 sum = block_dot(x, y, n);
  if (threadIdx.x == 0) atomicAdd(total, __halves2half2(sum, from_float<f16>(0.0f)));
}

void launch(const DotArgs& a, cudaStream_t stream) {
  launch_atomic(a, stream, [&](__half2* total) {
    const auto blocks = static_cast<unsigned>(ceil_div(a.n, kDotValuesPerBlock));
    warpsmith::launch<&dot_atomic_padded_kernel>({blocks, kAtomicThreads}, stream, static_cast<const f16*>(a.x),
                                                 static_cast<const f16*>(a.y), total, a.n);
  });
}

const Register<DotArgs> registered{"atomic_padded", /*min_sm=*/80, takes_f16, launch};

}  // namespace
}  // namespace warpsmith
