// Decoding for few sequences from a cache in 16 bits: sums go from block to block of a cluster.
//   Against `split_kv`: of a head that 32 blocks shared, one of them read all pieces from memory, which took longer than
//   the keys did. Here every block adds up its columns of what its neighbours hold in shared memory. Up to 32 queries share
//   a pass: two warps have 16 each. Bound: memory, and what a grid takes to begin and to end.
#include "attention/kv_cache/cluster_kernel.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const KvCacheArgs& a) {
  return takes_clusters<ClusterTile, ClusterPairTile>(a, /*e4m3_cache=*/false);
}

void launch(const KvCacheArgs& a, cudaStream_t stream) { launch_clusters<ClusterTile, ClusterPairTile>(a, stream); }

const Register<KvCacheArgs> registered{"split_cluster", /*min_sm=*/90,  takes,
                                       launch,          suits_clusters, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
