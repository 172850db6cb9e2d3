// Residual norms, long rows split over a thread-block cluster.
//   Against `registers`: several multiprocessors share a row. Clusters stay and walk over rows, which pass through shared
//   memory in chunks; each that is finished makes room for another, so that loads never pause while a row's sums travel
//   through distributed shared memory. Bound: DRAM.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/forward/chunks.cuh"

namespace warpsmith {
namespace {

const Register<AddNormArgs> registered{"cluster",
                                       /*min_sm=*/90,
                                       needs_sum_chunks<AddNormArgs>,
                                       launch_norm_chunks<OfSum, AddNormArgs>,
                                       suits_sum_chunks<AddNormArgs>,
                                       /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
