// Residual norms with dropout, one 128-bit access at a time.
//   Against `naive`: the fewest, widest requests, and every answer of the generator is used in full. Bound: h is read
//   back, from L2 where it still lies there.
#include "norm/add_norm/sweeps.cuh"
#include "norm/dropout_add_norm/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const DropoutAddNormArgs& a) { return needs_packs(a); }

void launch(const DropoutAddNormArgs& a, cudaStream_t stream) {
  visit_add_norm(a, [&]<class Types>() { launch_pack(DropoutAddNormRows<Types>(a), stream); });
}

const Register<DropoutAddNormArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
