// Residual norms with dropout backward, two kernels: a block per row writes dh and dx, then columns are summed.
//   As `naive` of add_norm_backward; every value asks the generator again. Any alignment, any length. Bound: passes over
//   data that fewer would do.
#include "norm/add_norm_backward/sweeps.cuh"
#include "norm/dropout_add_norm_backward/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const DropoutAddNormBackwardArgs&) { return nullptr; }

void launch(const DropoutAddNormBackwardArgs& a, cudaStream_t stream) {
  visit_add_norm_backward(a, [&]<class Types>() { launch_naive(a, DropoutAddNormBackwardRows<Types>(a), stream); });
}

const Register<DropoutAddNormBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
