// Residual norms backward, long rows split over a thread-block cluster.
//   Against `registers`: each block of a cluster keeps its slice of dw and db in registers, so rows of any practical length
//   are read once. A row passes through shared memory in chunks, and each that is finished makes room for another: loads
//   never pause while the row's sums travel through distributed shared memory. Bound: DRAM; layer norm at 16 bits:
//   instructions.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "norm/add_norm/backward/add_norm_backward.h"
#include "norm/backward/chunk_tiles.cuh"
#include "norm/backward/chunks.cuh"

namespace warpsmith {
namespace {

using Rms = NormFamily<RmsNormBackward, Residual>;
using Layer = NormFamily<LayerNormBackward, Residual>;

struct RmsHalfTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 2, .depth = 6, .lag = 0, .cluster = 2, .held = 2},
      {.threads = 512, .packs = 2, .depth = 6, .lag = 0, .cluster = 4, .held = 2},
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 4, .held = 4},
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 8, .held = 4},
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 16, .held = 4},
  };
};
struct LayerFloatTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 2, .held = 3},
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 4, .held = 3},
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 8, .held = 3},
      {.threads = 256, .packs = 16, .depth = 6, .lag = 1, .cluster = 8, .held = 12, .shelf = 4},
      {.threads = 256, .packs = 16, .depth = 6, .lag = 1, .cluster = 16, .held = 12, .shelf = 4},
  };
};

void launch(const AddNormBackwardArgs& a, cudaStream_t stream) {
  if (a.layer) {
    launch_backward_cluster<Layer, ResidualLayerHalfTiles, LayerFloatTiles>(a, stream);
  } else {
    launch_backward_cluster<Rms, RmsHalfTiles, ResidualRmsFloatTiles>(a, stream);
  }
}

const Register<AddNormBackwardArgs> registered{"cluster", /*min_sm=*/90,          needs_backward_cluster,
                                               launch,    suits_backward_cluster, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
