// Residual norms with dropout backward, two kernels: a block per row writes dh and dx, then columns are summed.
//   As `naive` of add_norm_backward; every value asks the generator again. Any alignment, any length. Bound: passes over
//   data that fewer would do.
#include "norm/backward/naive.cuh"
#include "norm/dropout_add_norm/backward/dropout_add_norm_backward.h"

namespace warpsmith {
namespace {

using Rms = NormFamily<RmsNormBackward, DroppedResidual>;
using Layer = NormFamily<LayerNormBackward, DroppedResidual>;

void launch(const DropoutAddNormBackwardArgs& a, cudaStream_t stream) {
  if (a.layer) {
    launch_backward_naive<Layer>(a, stream);
  } else {
    launch_backward_naive<Rms>(a, stream);
  }
}

const Register<DropoutAddNormBackwardArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
