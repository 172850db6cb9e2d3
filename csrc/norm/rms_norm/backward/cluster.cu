// RMS norm backward, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of weight and dw in registers, so rows of any
//   practical length are read once; the row's two sums travel through distributed shared memory. Bound: DRAM; of the
//   longest f32 rows the ring holds one and a half, so loads run low while a row is reduced.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/backward/chunk_tiles.cuh"
#include "norm/backward/chunks.cuh"
#include "norm/rms_norm/backward/rms_norm_backward.h"

namespace warpsmith {
namespace {

using Norm = NormFamily<RmsNormBackward, Alone>;

void launch(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  launch_backward_cluster<Norm, PlainRmsHalfTiles, PlainRmsFloatTiles>(a, stream);
}

const Register<RmsNormBackwardArgs> registered{"cluster",        /*min_sm=*/90,          needs_backward_cluster,
                                               launch,           suits_backward_cluster,
                                               /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
