// Residual norms backward, two kernels: a block per row writes dh, then columns are summed for dw and db.
//   The first sweeps its row two or three times, one value a load; the second reads grad and h again, in chunks of rows so
//   that there is work for every multiprocessor, and a third adds the chunks up. Any alignment, any length. Bound: passes
//   over data that fewer would do.
#include "norm/add_norm_backward/sweeps.cuh"

namespace warpsmith {
namespace {

const char* takes(const AddNormBackwardArgs&) { return nullptr; }

void launch(const AddNormBackwardArgs& a, cudaStream_t stream) {
  visit_add_norm_backward(a, [&]<class Types>() { launch_naive(a, AddNormBackwardRows<Types>(a), stream); });
}

const Register<AddNormBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
