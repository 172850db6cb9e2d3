// Residual norms, long rows split over a thread-block cluster.
//   Against `registers`: several multiprocessors share a row. Clusters stay and walk over rows, which pass through shared
//   memory in chunks; each that is finished makes room for another, so that loads never pause while a row's sums travel
//   through distributed shared memory. Bound: DRAM.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/add_norm/cluster.cuh"

namespace warpsmith {
namespace {

void launch(const AddNormArgs& a, cudaStream_t stream) {
  visit_add_norm(a, [&]<class Types>() { launch_cluster(AddNormRows<Types>(a), stream); });
}

const Register<AddNormArgs> registered{"cluster", /*min_sm=*/90, needs_cluster,
                                       launch,    suits_cluster, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
