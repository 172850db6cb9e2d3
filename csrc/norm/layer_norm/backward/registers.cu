// Layer norm backward, persistent blocks with dw and db in registers.
//   Against `naive`: grad and x are read once. A block keeps its columns' share of dw and db in registers over all rows
//   it meets, so they cost one small workspace and a second, short kernel instead of another pass; the next rows are on
//   their way while this one is reduced. Two gradients take twice the registers of one: longer rows get fewer threads
//   with more packs each, and few instructions per value besides. Bound: DRAM.
// Liger and quack sum dw the same way: https://github.com/Dao-AILab/quack
#include "norm/backward/registers.cuh"
#include "norm/layer_norm/backward/layer_norm_backward.h"

namespace warpsmith {
namespace {

using Norm = NormFamily<LayerNormBackward, Alone>;

// 16-bit values take twice the registers of dw and db per pack, so they get half the packs.
struct HalfTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 512, .lanes = 16, .packs = 1, .stages = 3, .min_blocks = 1},
      {.threads = 512, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 1},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 4, .min_blocks = 1},
      {.threads = 256, .lanes = 32, .packs = 4, .stages = 2, .min_blocks = 1},
      {.threads = 128, .packs = 2, .stages = 3, .min_blocks = 4},
      {.threads = 256, .packs = 2, .stages = 3, .min_blocks = 2},
      {.threads = 512, .packs = 2, .stages = 3, .min_blocks = 1},
  };
};
struct FloatTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 5},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 5},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 4, .stages = 2, .min_blocks = 3, .older_blocks = 2},
      {.threads = 128, .lanes = 32, .packs = 8, .stages = 2, .min_blocks = 3},
      {.threads = 512, .packs = 4, .stages = 3, .min_blocks = 1},
  };
};

void launch(const LayerNormBackwardArgs& a, cudaStream_t stream) {
  launch_backward_registers<Norm, HalfTiles, FloatTiles>(a, stream);
}

const Register<LayerNormBackwardArgs> registered{"registers", /*min_sm=*/80, needs_backward_registers, launch};

}  // namespace
}  // namespace warpsmith
