// Residual norms with dropout backward, long rows split over a thread-block cluster.
//   Against `registers`: rows of any practical length are read once, as `cluster` of add_norm_backward has it. Philox is
//   asked where dh is at hand, and what the packs of a row share on the way from there to dx is found once a row: that
//   leaves registers for as many warps as without dropout. Bound: DRAM; layer norm at 16 bits: instructions.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/backward/chunk_tiles.cuh"
#include "norm/backward/chunks.cuh"
#include "norm/dropout_add_norm/backward/dropout_add_norm_backward.h"

namespace warpsmith {
namespace {

using Rms = NormFamily<RmsNormBackward, DroppedResidual>;
using Layer = NormFamily<LayerNormBackward, DroppedResidual>;

struct RmsHalfTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 2, .depth = 6, .lag = 0, .cluster = 2, .held = 2},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 2, .held = 2, .shelf = 2},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 4, .held = 2, .shelf = 2},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 8, .held = 2, .shelf = 2},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 16, .held = 2, .shelf = 2},
  };
};
struct LayerFloatTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 2, .held = 1, .shelf = 3},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 4, .held = 1, .shelf = 3},
      {.threads = 512, .packs = 4, .depth = 5, .lag = 1, .cluster = 8, .held = 1, .shelf = 3},
      {.threads = 256, .packs = 16, .depth = 6, .lag = 1, .cluster = 8, .held = 12, .shelf = 4},
      {.threads = 256, .packs = 16, .depth = 6, .lag = 1, .cluster = 16, .held = 12, .shelf = 4},
  };
};

void launch(const DropoutAddNormBackwardArgs& a, cudaStream_t stream) {
  if (a.layer) {
    launch_backward_cluster<Layer, ResidualLayerHalfTiles, LayerFloatTiles>(a, stream);
  } else {
    launch_backward_cluster<Rms, RmsHalfTiles, ResidualRmsFloatTiles>(a, stream);
  }
}

const Register<DropoutAddNormBackwardArgs> registered{"cluster", /*min_sm=*/90,          needs_backward_cluster,
                                                      launch,    suits_backward_cluster, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
