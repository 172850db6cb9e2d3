// RMS norm backward from the output, two kernels: a block per row writes dx, then columns are summed for dw.
//   The first sweeps its row twice, one value a load; the second reads grad and y again, in chunks of rows so that
//   there is work for every multiprocessor, and a third adds the chunks up. Any alignment, any length. Bound: five
//   passes over data that three would do.
#include "norm/backward/naive.cuh"
#include "norm/rms_norm/backward_from_output/rms_norm_backward_from_output.h"

namespace warpsmith {
namespace {

void launch(const RmsNormBackwardFromOutputArgs& a, cudaStream_t stream) {
  launch_backward_naive<NormFamily<RmsNormBackwardFromOutput, Alone>>(a, stream);
}

const Register<RmsNormBackwardFromOutputArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
