// Cross-entropy with its gradient, a block per row, three sweeps.
//   The maximum, the sum of exponentials, then the gradient; one value an access. Bound: the number of load instructions,
//   and the row read three times.
#include "device/block.h"
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy/with_grad/row.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) cross_entropy_with_grad_naive_kernel(const CrossEntropyWithGradArgs a) {
  __shared__ BlockReduceStorage<float, kThreads> maxima, exps, totals;
  for (int64_t row = blockIdx.x; row < a.in.rows; row += gridDim.x) {
    const T* x = logits_row<T>(a.in, row);  // [cols]
    T* dx = dlogits_row<T>(a, row);         // [cols]
    const int64_t target = target_of(a.in, row);
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
    const float logit = threadIdx.x == 0 ? target_logit(a.in, x, target) : 0.0f;  // before it may be overwritten
    sums.total = block_reduce(sums.total, totals);

    // gradient
    const RowGradient gradient = gradient_of(a.in, target, sums, grad_loss_of(a, row));
    for (int64_t i = threadIdx.x; i < a.in.cols; i += kThreads) {
      dx[i] = from_float<T>(gradient_at(to_float(x[i]), gradient, i));
    }
    if (threadIdx.x == 0) write_loss(a.in, row, target, logit, sums, a.loss, a.lse);
    __syncthreads();  // the next row overwrites the shared partial results
  }
}

const char* takes(const CrossEntropyWithGradArgs&) { return nullptr; }

void launch(const CrossEntropyWithGradArgs& a, cudaStream_t stream) {
  dispatch_float(a.in.dtype, [&]<class T>() {
    warpsmith::launch<&cross_entropy_with_grad_naive_kernel<T>>({row_grid(a.in.rows), kThreads}, stream, a);
  });
}

const Register<CrossEntropyWithGradArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
