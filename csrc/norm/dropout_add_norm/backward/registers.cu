// Residual norms with dropout backward, persistent blocks with dw and db in registers.
//   Against `naive`: everything is read once and every answer of the generator is used in full, as `registers` of
//   add_norm_backward has it. The generator wants registers too, so fewer blocks share a multiprocessor. Bound: DRAM and,
//   at 16 bits, the generator.
#include "norm/backward/registers.cuh"
#include "norm/dropout_add_norm/backward/dropout_add_norm_backward.h"

namespace warpsmith {
namespace {

using Rms = NormFamily<RmsNormBackward, DroppedResidual>;
using Layer = NormFamily<LayerNormBackward, DroppedResidual>;

// 16-bit values take twice the registers of dw per pack, layer norm takes them for db again.
struct HalfTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 2},
      {.threads = 512, .packs = 2, .stages = 2, .min_blocks = 1},
  };
};
struct FloatTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .min_blocks = 2},
      {.threads = 512, .packs = 4, .stages = 1, .min_blocks = 1},
  };
};

void launch(const DropoutAddNormBackwardArgs& a, cudaStream_t stream) {
  if (a.layer) {
    launch_backward_registers<Layer, HalfTiles, FloatTiles>(a, stream);
  } else {
    launch_backward_registers<Rms, HalfTiles, FloatTiles>(a, stream);
  }
}

const Register<DropoutAddNormBackwardArgs> registered{"registers", /*min_sm=*/80, needs_backward_registers, launch};

}  // namespace
}  // namespace warpsmith
