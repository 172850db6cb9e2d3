// Residual norms with dropout, a block per row and one value an access.
//   As `naive` of add_norm; every value asks the generator, which answers for four. Any alignment, any length. Bound: the
//   number of instructions.
#include "norm/add_norm/sweeps.cuh"
#include "norm/dropout_add_norm/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const DropoutAddNormArgs&) { return nullptr; }

void launch(const DropoutAddNormArgs& a, cudaStream_t stream) {
  visit_add_norm(a, [&]<class Types>() { launch_naive(DropoutAddNormRows<Types>(a), stream); });
}

const Register<DropoutAddNormArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
