// Cross-entropy with its gradient, two sweeps of 128-bit accesses.
//   Against `naive`: maximum and sum come from one sweep, four packs in flight per thread; the second sweep finds the row
//   in L2 where it still lies there. Rows of any length; what lies before and after the aligned packs is peeled off.
//   Bound: L2, and DRAM for what has left it.
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy/with_grad/row.cuh"

namespace warpsmith {
namespace {

constexpr int kPacks = 4, kMostThreads = 512, kMinBlocks = 2;

template <class T, class Smooth>
__global__ void __launch_bounds__(kMostThreads, kMinBlocks)
    cross_entropy_with_grad_pack_kernel(const CrossEntropyWithGradArgs a) {
  __shared__ RowSums partial[kWarp];
  const int tid = threadIdx.x, threads = blockDim.x;
  const uint64_t policy = ptx::policy_evict_last();  // until the second sweep
  for (int64_t row = blockIdx.x; row < a.in.rows; row += gridDim.x) {
    const T* x = logits_row<T>(a.in, row);  // [cols]
    T* dx = dlogits_row<T>(a, row);         // [cols], aligned like x
    const PeeledRow<T> peeled = peel(a.in, x);
    const int64_t target = target_of(a.in, row);
    const float grad_loss = grad_loss_of(a, row);
    const int edge = peeled.edge(tid);
    const float at_edge = edge >= 0 ? to_float(x[edge]) : kLowest;
    Pack<T> packs[kPacks];

    // sum
    RowSums sums = no_sums();
    if (edge >= 0) absorb<Smooth>(sums, at_edge);
#pragma unroll 1
    for (int first = tid; first < peeled.packs; first += kPacks * threads) {
      int count = 0;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const int pack = first + i * threads;
        fill_lowest(packs[i]);
        if (pack < peeled.packs) {
          load_logits(packs[i], x + peeled.col(pack), policy);
          count = i + 1;
        }
      }
      absorb<Smooth>(sums, packs, count);
    }
    const float logit = tid == 0 ? target_logit(a.in, x, target) : 0.0f;  // before it may be overwritten
    sums = block_join<Smooth>(sums, partial);

    // gradient
    const RowGradient gradient = gradient_of(a.in, target, sums, grad_loss);
    if (edge >= 0) dx[edge] = from_float<T>(gradient_at(at_edge, gradient, edge));
#pragma unroll 2
    for (int i = tid; i < peeled.packs; i += threads) {
      const int col = peeled.col(i);
      load_logits(packs[0], x + col, policy);
      store<Cache::streaming>(dx + col, gradient_at(packs[0], gradient, col));
    }
    if (tid == 0) write_loss(a.in, row, target, logit, sums, a.loss, a.lse);
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const CrossEntropyWithGradArgs& a, cudaStream_t stream) {
  visit_smoothing(a.in, [&]<class T, class Smooth>() {
    const unsigned threads = row_threads(a.in.cols / kPack<T>, kPacks, kMostThreads);
    warpsmith::launch<&cross_entropy_with_grad_pack_kernel<T, Smooth>>({row_grid(a.in.rows), threads}, stream, a);
  });
}

const Register<CrossEntropyWithGradArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
