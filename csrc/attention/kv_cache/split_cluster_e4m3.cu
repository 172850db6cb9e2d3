// Decoding for few sequences from a cache in e4m3: split_cluster with keys and values widened between shared memory and the
// tensor cores. Bound: those instructions, and what a grid takes to begin and to end.
#include "attention/kv_cache/cluster_kernel.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const KvCacheArgs& a) {
  return takes_clusters<ClusterE4m3Tile, ClusterPairE4m3Tile>(a, /*e4m3_cache=*/true);
}

void launch(const KvCacheArgs& a, cudaStream_t stream) {
  launch_clusters<ClusterE4m3Tile, ClusterPairE4m3Tile>(a, stream);
}

const Register<KvCacheArgs> registered{"split_cluster_e4m3", /*min_sm=*/90,    takes, launch,
                                       suits_clusters,       /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
