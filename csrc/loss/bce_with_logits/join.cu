// The sum over the blocks of a rung that sums.
#include "loss/bce_with_logits/sum.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads) bce_with_logits_join_kernel(const BceWithLogitsForwardArgs a) {
  __shared__ BlockReduceStorage<double, kThreads> shared;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < a.blocks; i += kThreads) sum += a.partial[i];
  sum = block_reduce(sum, shared);
  if (threadIdx.x == 0) a.loss[0] = static_cast<float>(sum * a.scale);
}

}  // namespace

void launch_bce_join(const BceWithLogitsForwardArgs& a, cudaStream_t stream) {
  launch<&bce_with_logits_join_kernel>({1, kThreads}, stream, a);
}

}  // namespace warpsmith
