// Residual norms backward, persistent blocks with dw and db in registers.
//   Against `naive`: grad, grad_h and h are read once. A block keeps its columns' share of dw and db in registers over all
//   rows it meets, so these cost one small workspace and a second, short kernel instead of another pass; the next rows are
//   on their way while this one is reduced. Bound: DRAM, until a row needs more registers than a block has.
// Liger and quack sum dw the same way: https://github.com/Dao-AILab/quack
#include "norm/add_norm/backward/add_norm_backward.h"
#include "norm/backward/registers.cuh"

namespace warpsmith {
namespace {

using Rms = NormFamily<RmsNormBackward, Residual>;
using Layer = NormFamily<LayerNormBackward, Residual>;

// 16-bit values take twice the registers of dw per pack, layer norm takes them for db again.
struct RmsHalfTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 2, .min_blocks = 3},
      {.threads = 512, .packs = 2, .stages = 2, .min_blocks = 2},
  };
};
struct RmsFloatTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 3, .min_blocks = 4},
      {.threads = 512, .packs = 4, .stages = 1, .min_blocks = 2},
  };
};
struct LayerHalfTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 3},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 2},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 2, .min_blocks = 2},
      {.threads = 256, .lanes = 32, .packs = 4, .stages = 2, .held = false, .min_blocks = 1},
      {.threads = 256, .packs = 2, .stages = 2, .min_blocks = 2},
      {.threads = 512, .packs = 2, .stages = 2, .min_blocks = 1},
  };
};
struct LayerFloatTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 3, .min_blocks = 3},
      {.threads = 512, .packs = 2, .stages = 2, .min_blocks = 2},
      {.threads = 512, .packs = 4, .stages = 1, .min_blocks = 1},
  };
};

void launch(const AddNormBackwardArgs& a, cudaStream_t stream) {
  if (a.layer) {
    launch_backward_registers<Layer, LayerHalfTiles, LayerFloatTiles>(a, stream);
  } else {
    launch_backward_registers<Rms, RmsHalfTiles, RmsFloatTiles>(a, stream);
  }
}

const Register<AddNormBackwardArgs> registered{"registers", /*min_sm=*/80, needs_backward_registers, launch};

}  // namespace
}  // namespace warpsmith
