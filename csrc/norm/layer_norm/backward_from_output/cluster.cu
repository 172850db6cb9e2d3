// Layer norm backward from the output, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of dw and db in registers, so rows of any practical
//   length are read once. A row passes through shared memory in chunks, and each that is finished makes room for
//   another: loads never pause while the row's sums travel through distributed shared memory. f32 rows leave xhat and
//   grad * weight in the ring, so that nothing is computed twice; of the longest, most of the weight and the bias comes
//   from L2 with every row. Sixteen warps hide what eight with 1 / weight in registers do not. Bound: DRAM.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/backward/chunks.cuh"
#include "norm/layer_norm/backward_from_output/layer_norm_backward_from_output.h"

namespace warpsmith {
namespace {

struct HalfTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 2, .depth = 6, .lag = 1, .cluster = 2, .held = 2},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 2, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 4, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 8, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 16, .held = 0, .shelf = 4},
  };
};
struct FloatTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 2, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 4, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 8, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 16, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 8, .depth = 3, .lag = 1, .cluster = 16, .held = 0, .shelf = 2},
  };
};

void launch(const LayerNormBackwardFromOutputArgs& a, cudaStream_t stream) {
  launch_backward_cluster<NormFamily<LayerNormBackwardFromOutput, Alone>, HalfTiles, FloatTiles>(a, stream);
}

const Register<LayerNormBackwardFromOutputArgs> registered{
    "cluster",        /*min_sm=*/90, needs_backward_cluster, launch, suits_backward_cluster,
    /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
