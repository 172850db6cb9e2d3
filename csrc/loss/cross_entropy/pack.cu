// Cross-entropy in one sweep of 128-bit accesses.
//   Against `online`: one load brings 16 bytes, and the maximum moves once for all of them. The elements before and after
//   the aligned packs are peeled off, so that rows of any length and alignment are read in packs. Bound: a thread waits
//   for each of its loads before it makes the next.
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy/cross_entropy_forward.h"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;

template <class T, class Smooth>
__global__ void __launch_bounds__(kMostThreads) cross_entropy_forward_pack_kernel(const CrossEntropyForwardArgs a) {
  __shared__ RowSums partial[kWarp];
  const int tid = threadIdx.x, threads = blockDim.x;
  for (int64_t row = blockIdx.x; row < a.in.rows; row += gridDim.x) {
    const T* x = logits_row<T>(a.in, row);  // [cols]
    const PeeledRow<T> peeled = peel(a.in, x);

    RowSums sums = no_sums();
    if (const int edge = peeled.edge(tid); edge >= 0) absorb<Smooth>(sums, to_float(x[edge]));
#pragma unroll 1
    for (int i = tid; i < peeled.packs; i += threads) {
      Pack<T> pack[1];
      load<Cache::streaming>(pack[0], x + peeled.col(i));
      absorb<Smooth>(sums, pack, 1);
    }
    sums = block_join<Smooth>(sums, partial);

    if (tid == 0) {
      const int64_t target = target_of(a.in, row);
      write_loss(a.in, row, target, target_logit(a.in, x, target), sums, a.loss, a.lse);
    }
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const CrossEntropyForwardArgs& a) { return needs_peelable(a.in); }

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  visit_smoothing(a.in, [&]<class T, class Smooth>() {
    const unsigned threads = row_threads(a.in.cols / kPack<T>, 1, kMostThreads);
    warpsmith::launch<&cross_entropy_forward_pack_kernel<T, Smooth>>({row_grid(a.in.rows), threads}, stream, a);
  });
}

const Register<CrossEntropyForwardArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
