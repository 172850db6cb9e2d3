// Scaled masked softmax, the row in the registers of a thread-block cluster.
//   Against `block`: rows of up to 1 MiB, spread over several multiprocessors, where `online` would read them twice. Each
//   block joins its warps as before, and one exchange of a maximum and a sum through distributed shared memory joins the
//   blocks. Bound: DRAM, less what a row waits for in the exchange.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "device/cluster_gather.h"
#include "softmax/scaled_masked_softmax/row.cuh"

namespace warpsmith {
namespace {

// Two blocks to a multiprocessor, so that one row loads while another waits or is written; of the longest, one.
using Tiles = std::tuple<LogitClusterTile<512, 4, 2, 4>, LogitClusterTile<512, 4, 2, 8>,
                         LogitClusterTile<512, 4, 2, 16>, LogitClusterTile<1024, 4, 1, 16>>;
static_assert(std::tuple_element_t<3, Tiles>::most_packs * 16 == kClusterBytes);
static_assert(std::tuple_element_t<3, Tiles>::cluster == kMostLogitCluster);

template <class T, class Biased, class Tile>
__global__ void __launch_bounds__(Tile::threads, min_blocks<Tile, Biased>())
    scaled_masked_softmax_cluster_kernel([[maybe_unused]] const ScaledMaskedSoftmaxRows<T> v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ RowTotals partial[kWarp];
  __shared__ ClusterGather<float2> gathered;  // a block's maximum and sum
  cluster_gather_prepare(gathered, Tile::cluster);
  cluster_arrive_relaxed();
  softmax_row<Tile, Biased>(v, [&](const RowTotals& own) {
    const RowTotals totals = join_warps(own, partial);
    cluster_wait();  // every block expects what is sent now
    cluster_gather(float2{totals.most, totals.sum}, gathered, Tile::cluster);
    const float2 theirs = gathered.values[threadIdx.x % Tile::cluster];
    return join_lanes<Tile::cluster>({theirs.x, theirs.y});
  });
#endif
}

void launch(const ScaledMaskedSoftmaxArgs& a, cudaStream_t stream) {
  visit_logits(a.logits, [&]<class T, class Biased>() {
    launch_smallest(a.logits.rows, a.logits.cols / kPack<T>, Tiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&scaled_masked_softmax_cluster_kernel<T, Biased, Tile>>(config, stream,
                                                                                ScaledMaskedSoftmaxRows<T>(a));
    });
  });
}

const char* takes(const ScaledMaskedSoftmaxArgs& a) {
  return unmet({needs_packs(a.logits), needs_cluster_grid(a.logits.rows),
                needs_row_bytes<kClusterBytes>(a.logits.cols, a.logits.dtype)});
}

bool suits(const ScaledMaskedSoftmaxArgs& a) { return a.logits.cols * size_of(a.logits.dtype) > kBlockBytes; }

const Register<ScaledMaskedSoftmaxArgs> registered{"cluster",        /*min_sm=*/90, takes, launch, suits,
                                                   /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
