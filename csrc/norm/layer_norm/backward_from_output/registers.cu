// Layer norm backward from the output, persistent blocks with dw and db in registers.
//   Against `naive`: grad and y are read once, as `registers` of layer_norm_backward reads grad and x; with rstd given,
//   two sums over the row remain. The bias is needed, too, so the longest rows keep it and the weight in shared memory.
//   Bound: DRAM.
#include "norm/backward/registers.cuh"
#include "norm/layer_norm/backward_from_output/layer_norm_backward_from_output.h"

namespace warpsmith {
namespace {

// 16-bit values take twice the registers of dw and db per pack, so they get half the packs.
struct HalfTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 3},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 3},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 3, .min_blocks = 2},
      {.threads = 256, .lanes = 32, .packs = 4, .stages = 2, .held = false, .shelf = true, .min_blocks = 2},
      {.threads = 256, .packs = 4, .stages = 2, .held = false, .shelf = true, .min_blocks = 2},
  };
};
struct FloatTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 3, .min_blocks = 3},
      {.threads = 256, .lanes = 32, .packs = 4, .stages = 2, .min_blocks = 2},
      {.threads = 128, .lanes = 32, .packs = 8, .stages = 2, .held = false, .shelf = true, .min_blocks = 2},
      {.threads = 512, .packs = 4, .stages = 3, .min_blocks = 1},
  };
};

void launch(const LayerNormBackwardFromOutputArgs& a, cudaStream_t stream) {
  launch_backward_registers<NormFamily<LayerNormBackwardFromOutput, Alone>, HalfTiles, FloatTiles>(a, stream);
}

const Register<LayerNormBackwardFromOutputArgs> registered{"registers", /*min_sm=*/80, needs_backward_registers,
                                                           launch};

}  // namespace
}  // namespace warpsmith
