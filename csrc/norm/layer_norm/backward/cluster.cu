// Layer norm backward, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of weight, dw and db in registers, so rows of any
//   practical length are read once; what the row adds up to travels through distributed shared memory. Bound: DRAM; of
//   the longest f32 rows the ring holds one and a quarter, so loads run low while a row is reduced.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/backward/chunks.cuh"
#include "norm/layer_norm/backward/layer_norm_backward.h"

namespace warpsmith {
namespace {

using Norm = NormFamily<LayerNormBackward, Alone>;

struct HalfTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 2, .depth = 8, .lag = 1, .cluster = 2, .held = 2},
      {.threads = 512, .packs = 4, .depth = 7, .lag = 1, .cluster = 2, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 7, .lag = 1, .cluster = 4, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 7, .lag = 1, .cluster = 8, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 7, .lag = 1, .cluster = 16, .held = 0, .shelf = 4},
  };
};
struct FloatTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 2, .held = 4},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 4, .held = 4},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 8, .held = 4},
      {.threads = 256, .packs = 16, .depth = 8, .lag = 1, .cluster = 8, .held = 12, .shelf = 4},
      {.threads = 256, .packs = 16, .depth = 8, .lag = 1, .cluster = 16, .held = 12, .shelf = 4},
  };
};

void launch(const LayerNormBackwardArgs& a, cudaStream_t stream) {
  launch_backward_cluster<Norm, HalfTiles, FloatTiles>(a, stream);
}

const Register<LayerNormBackwardArgs> registered{"cluster",        /*min_sm=*/90,          needs_backward_cluster,
                                                 launch,           suits_backward_cluster,
                                                 /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
