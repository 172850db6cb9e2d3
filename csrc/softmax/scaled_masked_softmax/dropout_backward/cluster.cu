// Backward of bias, scale, mask, softmax and dropout, the row in the registers of a thread-block cluster.
//   Against `block`: longer rows, of up to 262144 columns, spread over several multiprocessors; `pack` would read them
//   twice, and draw twice what is dropped. One exchange through distributed shared memory joins the sums of the blocks.
//   Bound: that of `block`, and what a row waits for in the exchange.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include <bit>

#include "device/cluster_gather.h"
#include "softmax/scaled_masked_softmax/dropout_backward/register_rows.cuh"

namespace warpsmith {
namespace {

// Two blocks to a multiprocessor as long as registers allow, so that one row loads while another waits or is written.
using HalfTiles = std::tuple<LogitClusterTile<512, 2, 2, 4>, LogitClusterTile<512, 2, 2, 8>,
                             LogitClusterTile<512, 2, 2, 16>, LogitClusterTile<512, 4, 1, 16>>;
using FloatTiles = std::tuple<LogitClusterTile<512, 4, 2, 4>, LogitClusterTile<512, 4, 2, 8>,
                              LogitClusterTile<512, 4, 2, 16>, LogitClusterTile<1024, 4, 1, 16>>;
constexpr int64_t kMostCols = 262144;
static_assert(std::tuple_element_t<3, HalfTiles>::most_packs * 8 == kMostCols);
static_assert(std::tuple_element_t<3, FloatTiles>::most_packs * 4 == kMostCols);
static_assert(std::tuple_element_t<3, FloatTiles>::cluster == kMostLogitCluster);

// GradientSums as shared memory holds them, which runs no constructors.
struct StoredSums {
  float at[sizeof(GradientSums) / sizeof(float)];
};

template <class T, class B, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    bias_scale_mask_softmax_dropout_backward_cluster_kernel([[maybe_unused]] const RegisterRows<T> v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ SharedSums shared;
  __shared__ ClusterGather<StoredSums> gathered;
  cluster_gather_prepare(gathered, Tile::cluster);
  cluster_arrive_relaxed();
  dropout_backward_row<Tile, B>(v, [&](const GradientSums& own, bool peaked) {
    const GradientSums sums = block_sums<Tile>(own, peaked, shared);
    cluster_wait();  // every block expects what is sent now
    cluster_gather(std::bit_cast<StoredSums>(sums), gathered, Tile::cluster);
    const auto part = std::bit_cast<GradientSums>(gathered.values[threadIdx.x % Tile::cluster]);
    return warp_sums<Tile::cluster>(part, __any_sync(kAllLanes, part.peaks != 0.0f));
  });
#endif
}

const char* takes(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (const char* reason = needs_cluster_grid(a.logits.rows)) return reason;
  return a.logits.cols <= kMostCols ? nullptr : "needs rows of at most 262144 columns";
}

bool suits(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) { return a.logits.cols > kMostBlockCols; }

void launch(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a, cudaStream_t stream) {
  visit_bias(a.logits, [&]<class T, class B>() {
    using Tiles = std::conditional_t<sizeof(T) == 2, HalfTiles, FloatTiles>;
    launch_smallest(a.logits.rows, a.logits.cols / kPack<T>, Tiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&bias_scale_mask_softmax_dropout_backward_cluster_kernel<T, B, Tile>>(config, stream,
                                                                                              RegisterRows<T>(a));
    });
  });
}

const Register<BiasScaleMaskSoftmaxDropoutBackwardArgs> registered{"cluster",        /*min_sm=*/90, takes,
                                                                   launch,           suits,
                                                                   /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
