// Cross-entropy with its gradient, long rows split over a thread-block cluster.
//   Against `registers`: the row spreads over several multiprocessors, so that each holds parts of several rows and reads
//   of one overlap writes of another; maximum and sum travel through distributed shared memory. Blocks take their
//   places while the kernel before ends. Bound: DRAM; the longer the row, the more of the machine waits at the same
//   exchange.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include <tuple>

#include "device/start_early.h"
#include "host/launch.h"
#include "host/registry.h"
#include "host/tiles.h"
#include "loss/cross_entropy/with_grad/row.cuh"
#include "row/packed.h"

namespace warpsmith {
namespace {

// threads of a block (at most) | 128-bit packs of a row that a thread holds | blocks per multiprocessor |
// blocks that share a row
template <int threads_, int packs_, int min_blocks_, int cluster_>
struct Tile {
  static constexpr int threads = threads_, packs = packs_, min_blocks = min_blocks_, cluster = cluster_;
  static constexpr int64_t most_packs = int64_t{cluster} * threads * packs;  // of a row
};

// The first that holds the row is taken.
using Tiles = std::tuple<Tile<512, 8, 2, 2>, Tile<512, 8, 2, 4>, Tile<512, 8, 2, 8>, Tile<1024, 8, 1, 8>>;
constexpr int64_t kMostBytes = 16 * std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;

// Up to this length one block holds a row as well.
constexpr int64_t kWorthwhileBytes = 64 * 1024;

template <class T, class Smooth, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    cross_entropy_with_grad_cluster_kernel([[maybe_unused]] const CrossEntropyWithGradArgs a,
                                           [[maybe_unused]] bool keep) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kCluster = Tile::cluster, kPacks = Tile::packs;
  __shared__ ClusterJoinStorage<Tile::threads, kCluster> shared;
  cluster_join_prepare<Smooth>(shared);
  cluster_arrive_relaxed();
  start_early();

  const int tid = threadIdx.x, threads = blockDim.x;
  const int rank = cluster_rank();
  const int64_t row = blockIdx.x / kCluster;
  const T* x = logits_row<T>(a.in, row);  // [cols]
  const PeeledRow<T> peeled = peel(a.in, x);
  const int slice = (peeled.packs + kCluster - 1) / kCluster;
  const int own = min(peeled.packs - rank * slice, slice);  // packs of this block, none at the end of a short row
  const int first = peeled.col(rank * slice);

  // load
  const uint64_t policy = load_policy(keep);
  Pack<T> held[kPacks];
  int count = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = i * threads + tid;
    fill_lowest(held[i]);
    if (pack < own) {
      load_logits(held[i], x + first + pack * kPack<T>, policy);
      count = i + 1;
    }
  }
  const int edge = rank == 0 ? peeled.edge(tid) : -1;
  const float at_edge = edge >= 0 ? to_float(x[edge]) : kLowest;
  const int64_t target = target_of(a.in, row);
  const float grad_loss = grad_loss_of(a, row);
  const bool writes_loss = rank == 0 && tid == 0;
  float logit = writes_loss ? target_logit(a.in, x, target) : 0.0f;

  // sum
  RowSums sums = no_sums();
  if (edge >= 0) absorb<Smooth>(sums, at_edge);
  absorb<Smooth>(sums, held, count);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) keep_packed(held[i]);
  // The first warp waits for the target's logit before it sends: then no block overwrites it too soon.
  logit = __shfl_sync(kAllLanes, logit, 0);
  cluster_wait();  // every block expects what is sent now
  sums = cluster_join<Smooth>(sums, shared);
  if (writes_loss) write_loss(a.in, row, target, logit, sums, a.loss, a.lse);

  // gradient
  T* dx = dlogits_row<T>(a, row);  // [cols], aligned like x
  const RowGradient gradient = gradient_of(a.in, target, sums, grad_loss);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = i * threads + tid, col = first + pack * kPack<T>;
    if (pack < own) store<Cache::streaming>(dx + col, gradient_at(held[i], gradient, col));
  }
  if (edge >= 0) dx[edge] = from_float<T>(gradient_at(at_edge, gradient, edge));
#endif
}

template <class T, class Smooth, class Tile>
void launch_tile(const CrossEntropyWithGradArgs& a, cudaStream_t stream) {
  const int64_t slice = (a.in.cols / kPack<T> + Tile::cluster - 1) / Tile::cluster;
  const LaunchConfig config{.grid = dim3(static_cast<unsigned>(a.in.rows * Tile::cluster)),
                            .block = dim3(row_threads(slice, Tile::packs, Tile::threads)),
                            .cluster = Tile::cluster,
                            .early = true};
  warpsmith::launch<&cross_entropy_with_grad_cluster_kernel<T, Smooth, Tile>>(config, stream, a, keeps_logits(a));
}

void launch(const CrossEntropyWithGradArgs& a, cudaStream_t stream) {
  visit_smoothing(a.in, [&]<class T, class Smooth>() {
    with_first_tile(Tiles{}, a.in.cols / kPack<T>, [&]<class Tile>() { launch_tile<T, Smooth, Tile>(a, stream); });
  });
}

const char* takes(const CrossEntropyWithGradArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.in.rows > kMostRows / 16) return "needs at most 2^27 rows";
  return needs_row_bytes<kMostBytes>(a.in.cols, a.in.dtype);
}

bool suits(const CrossEntropyWithGradArgs& a) { return a.in.cols * size_of(a.in.dtype) > kWorthwhileBytes; }

const Register<CrossEntropyWithGradArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
