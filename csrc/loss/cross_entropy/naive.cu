// Cross-entropy, a block per row, in the two sweeps that the definition names.
//   The first finds the maximum, the second adds e^(x - maximum); one value an access. Bound: the row is read twice, and
//   the number of load instructions.
#include "device/block.h"
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy/cross_entropy_forward.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) cross_entropy_forward_naive_kernel(const CrossEntropyForwardArgs a) {
  __shared__ BlockReduceStorage<float, kThreads> maxima, exps, totals;
  for (int64_t row = blockIdx.x; row < a.in.rows; row += gridDim.x) {
    const T* x = logits_row<T>(a.in, row);  // [cols]
    RowSums sums = no_sums();

    // maximum
    for (int64_t i = threadIdx.x; i < a.in.cols; i += kThreads) sums.most = fmaxf(sums.most, to_float(x[i]));
    sums.most = block_reduce(sums.most, maxima, Max{});

    // exponentials
    const float base = base_of(sums.most);
    for (int64_t i = threadIdx.x; i < a.in.cols; i += kThreads) {
      const float value = to_float(x[i]);
      sums.exps += exp_from(value, base);
      sums.total += value;
    }
    sums.exps = block_reduce(sums.exps, exps);
    sums.total = block_reduce(sums.total, totals);

    if (threadIdx.x == 0) {
      const int64_t target = target_of(a.in, row);
      write_loss(a.in, row, target, target_logit(a.in, x, target), sums, a.loss, a.lse);
    }
    __syncthreads();  // the next row overwrites the shared partial results
  }
}

const char* takes(const CrossEntropyForwardArgs&) { return nullptr; }

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.in.dtype, [&]<class T>() {
    warpsmith::launch<&cross_entropy_forward_naive_kernel<T>>({row_grid(a.in.rows), kThreads}, stream, a);
  });
}

const Register<CrossEntropyForwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
