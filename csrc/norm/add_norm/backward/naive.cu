// Residual norms backward, two kernels: a block per row writes dh, then columns are summed for dw and db.
//   The first sweeps its row two or three times, one value a load; the second reads grad and h again, in chunks of rows so
//   that there is work for every multiprocessor, and a third adds the chunks up. Any alignment, any length. Bound: passes
//   over data that fewer would do.
#include "norm/add_norm/backward/add_norm_backward.h"
#include "norm/backward/naive.cuh"

namespace warpsmith {
namespace {

using Rms = NormFamily<RmsNormBackward, Residual>;
using Layer = NormFamily<LayerNormBackward, Residual>;

void launch(const AddNormBackwardArgs& a, cudaStream_t stream) {
  if (a.layer) {
    launch_backward_naive<Layer>(a, stream);
  } else {
    launch_backward_naive<Rms>(a, stream);
  }
}

const Register<AddNormBackwardArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
