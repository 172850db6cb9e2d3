// Cross-entropy of a few long rows, each split over a thread-block cluster.
//   Against `unroll`: where there are fewer rows than multiprocessors can hold, eight blocks read one together, and join
//   maximum and sum through distributed shared memory. Blocks are small, so that all of 64 rows have places at once, and
//   take these while the kernel before ends. Bound: DRAM, as long as the blocks fill the machine.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "device/start_early.h"
#include "host/launch.h"
#include "host/registry.h"
#include "loss/cross_entropy.cuh"
#include "loss/cross_entropy/cross_entropy_forward.h"

namespace warpsmith {
namespace {

[[maybe_unused]] constexpr int kPacks = 8;  // in flight per thread
constexpr int kThreads = 256, kMinBlocks = 4;
constexpr int kCluster = kPortableCluster;

template <class T, class Smooth>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    cross_entropy_forward_cluster_kernel([[maybe_unused]] const CrossEntropyForwardArgs a) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ ClusterJoinStorage<kThreads, kCluster> shared;
  cluster_join_prepare<Smooth>(shared);
  cluster_arrive_relaxed();
  start_early();

  const int tid = threadIdx.x, rank = cluster_rank();
  const int64_t row = blockIdx.x / kCluster;
  const T* x = logits_row<T>(a.in, row);  // [cols]
  const PeeledRow<T> peeled = peel(a.in, x);
  const int packs = peeled.packs, slice = (packs + kCluster - 1) / kCluster;
  const int own = min(packs - rank * slice, slice);  // packs of this block, none at the end of a short row
  const T* gX = x + peeled.col(rank * slice);        // [own * kPack]
  const bool writes = rank == 0 && tid == 0;
  const int64_t target = target_of(a.in, row);

  RowSums sums = no_sums();
  if (rank == 0) {
    if (const int edge = peeled.edge(tid); edge >= 0) absorb<Smooth>(sums, to_float(x[edge]));
  }
#pragma unroll 1
  for (int first = tid; first < own; first += kPacks * kThreads) {
    Pack<T> held[kPacks];
    const int count = (own - first + kThreads - 1) / kThreads;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      fill_lowest(held[i]);
      if (i < count) load<Cache::streaming>(held[i], gX + (int64_t{first} + i * kThreads) * kPack<T>);
    }
    absorb<Smooth>(sums, held, count);
  }
  const float logit = writes ? target_logit(a.in, x, target) : 0.0f;  // on its way during the join

  cluster_wait();  // every block expects what is sent now
  sums = cluster_join<Smooth>(sums, shared);
  if (writes) write_loss(a.in, row, target, logit, sums, a.loss, a.lse);
#endif
}

void launch(const CrossEntropyForwardArgs& a, cudaStream_t stream) {
  visit_smoothing(a.in, [&]<class T, class Smooth>() {
    const LaunchConfig config{.grid = dim3(static_cast<unsigned>(a.in.rows * kCluster)),
                              .block = dim3(kThreads),
                              .cluster = kCluster,
                              .early = true};
    warpsmith::launch<&cross_entropy_forward_cluster_kernel<T, Smooth>>(config, stream, a);
  });
}

const char* takes(const CrossEntropyForwardArgs& a) {
  if (a.in.rows > kMostRows / kCluster) return "needs fewer than 2^28 rows";
  return needs_peelable(a.in);
}

// Rows enough fill the machine one to a block; short ones are not worth the exchange.
constexpr int64_t kFewRows = 256, kLongBytes = 64 * 1024;

bool suits(const CrossEntropyForwardArgs& a) {
  return a.in.rows <= kFewRows && a.in.cols * size_of(a.in.dtype) >= kLongBytes;
}

const Register<CrossEntropyForwardArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
