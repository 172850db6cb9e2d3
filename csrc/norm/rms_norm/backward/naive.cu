// RMS norm backward, two kernels: a block per row writes dx, then columns are summed for dw.
//   The first sweeps its row twice, one value a load; the second reads grad and x again, in chunks of rows so that
//   there is work for every multiprocessor, and a third adds the chunks up. Any alignment, any length. Bound: five
//   passes over data that three would do.
#include "norm/backward/naive.cuh"
#include "norm/rms_norm/backward/rms_norm_backward.h"

namespace warpsmith {
namespace {

using Norm = NormFamily<RmsNormBackward, Alone>;

void launch(const RmsNormBackwardArgs& a, cudaStream_t stream) { launch_backward_naive<Norm>(a, stream); }

const Register<RmsNormBackwardArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
