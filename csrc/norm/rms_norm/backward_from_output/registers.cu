// RMS norm backward from the output, persistent blocks with dw in registers.
//   Against `naive`: grad and y are read once, as `registers` of rms_norm_backward reads grad and x; with rstd given, one
//   sum over the row remains. Bound: DRAM.
#include "norm/backward/registers.cuh"
#include "norm/rms_norm/backward_from_output/rms_norm_backward_from_output.h"

namespace warpsmith {
namespace {

// 16-bit values take twice the registers of dw per pack, so they get half the packs.
struct HalfTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 3, .min_blocks = 3},
      {.threads = 256, .lanes = 32, .packs = 4, .stages = 2, .min_blocks = 2},
      {.threads = 512, .packs = 2, .stages = 3, .min_blocks = 2},
  };
};
struct FloatTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 8, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 2, .stages = 3, .min_blocks = 4},
      {.threads = 256, .lanes = 32, .packs = 4, .stages = 2, .min_blocks = 3},
      {.threads = 128, .lanes = 32, .packs = 8, .stages = 2, .min_blocks = 3},
      {.threads = 512, .packs = 4, .stages = 3, .min_blocks = 1},
  };
};

void launch(const RmsNormBackwardFromOutputArgs& a, cudaStream_t stream) {
  launch_backward_registers<NormFamily<RmsNormBackwardFromOutput, Alone>, HalfTiles, FloatTiles>(a, stream);
}

const Register<RmsNormBackwardFromOutputArgs> registered{"registers", /*min_sm=*/80, needs_backward_registers, launch};

}  // namespace
}  // namespace warpsmith
