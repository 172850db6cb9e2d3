// Cross-entropy in one sweep.
//   Against `naive`: the sum of exponentials follows the maximum as it grows, so that the row is read once; maximum and
//   sum cross the block together, behind one barrier. Bound: the number of load instructions.
// Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", https://arxiv.org/abs/1805.02867
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy/cross_entropy_forward.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T, class Smooth>
__global__ void __launch_bounds__(kThreads) cross_entropy_forward_online_kernel(const CrossEntropyForwardArgs a) {
  __shared__ RowSums partial[kWarp];
  for (int64_t row = blockIdx.x; row < a.in.rows; row += gridDim.x) {
    const T* x = logits_row<T>(a.in, row);  // [cols]

    RowSums sums = no_sums();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < a.in.cols; i += kThreads) absorb<Smooth>(sums, to_float(x[i]));
    sums = block_join<Smooth>(sums, partial);

    if (threadIdx.x == 0) {
      const int64_t target = target_of(a.in, row);
      write_loss(a.in, row, target, target_logit(a.in, x, target), sums, a.loss, a.lse);
    }
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const CrossEntropyForwardArgs&) { return nullptr; }

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  visit_smoothing(a.in, [&]<class T, class Smooth>() {
    warpsmith::launch<&cross_entropy_forward_online_kernel<T, Smooth>>({row_grid(a.in.rows), kThreads}, stream, a);
  });
}

const Register<CrossEntropyForwardArgs> registered{"online", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
