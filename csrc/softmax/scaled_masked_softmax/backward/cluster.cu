// Scaled masked softmax backward, grad and y in the registers of a thread-block cluster.
//   Against `block`: rows of up to 1 MiB, spread over several multiprocessors, where `pack` would read them twice. Each
//   block adds up its warps as before, and one exchange of a sum through distributed shared memory joins the blocks.
//   Bound: DRAM, less what a row waits for in the exchange.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "device/cluster_gather.h"
#include "softmax/logits.h"
#include "softmax/scaled_masked_softmax/backward/row.cuh"

namespace warpsmith {
namespace {

// Two blocks to a multiprocessor, so that one row loads while another waits or is written; of the longest, one.
using Tiles = std::tuple<LogitClusterTile<512, 4, 2, 4>, LogitClusterTile<512, 4, 2, 8>,
                         LogitClusterTile<512, 4, 2, 16>, LogitClusterTile<1024, 4, 1, 16>>;
static_assert(std::tuple_element_t<3, Tiles>::most_packs * 16 == kClusterBytes);
static_assert(std::tuple_element_t<3, Tiles>::cluster == kMostLogitCluster);

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    scaled_masked_softmax_backward_cluster_kernel([[maybe_unused]] const ScaledMaskedSoftmaxBackwardRows<T> v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ float partial[kWarp];
  __shared__ ClusterGather<float> gathered;
  cluster_gather_prepare(gathered, Tile::cluster);
  cluster_arrive_relaxed();
  softmax_backward_row<Tile>(v, [&](float own) {
    const float sum = block_sum(own, partial);
    cluster_wait();  // every block expects what is sent now
    cluster_gather(sum, gathered, Tile::cluster);
    return warp_reduce<Tile::cluster>(gathered.values[threadIdx.x % Tile::cluster]);
  });
#endif
}

const char* takes(const ScaledMaskedSoftmaxBackwardArgs& a) {
  return unmet({needs_packs(a), needs_cluster_grid(a.rows), needs_row_bytes<kClusterBytes>(a.cols, a.dtype)});
}

bool suits(const ScaledMaskedSoftmaxBackwardArgs& a) { return a.cols * size_of(a.dtype) > kBlockBytes; }

void launch(const ScaledMaskedSoftmaxBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    launch_smallest(a.rows, a.cols / kPack<T>, Tiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&scaled_masked_softmax_backward_cluster_kernel<T, Tile>>(config, stream,
                                                                                 ScaledMaskedSoftmaxBackwardRows<T>(a));
    });
  });
}

const Register<ScaledMaskedSoftmaxBackwardArgs> registered{"cluster",        /*min_sm=*/90, takes, launch, suits,
                                                           /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
