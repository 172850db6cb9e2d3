// Residual norms, one 128-bit access at a time.
//   Against `naive`: a load brings 16 bytes, so the memory system sees the fewest, widest requests. Rows of any length
//   that packs tile. Bound: h is read back, from L2 where it still lies there.
#include "norm/add_norm/sweeps.cuh"

namespace warpsmith {
namespace {

void launch(const AddNormArgs& a, cudaStream_t stream) {
  visit_add_norm(a, [&]<class Types>() { launch_pack(AddNormRows<Types>(a), stream); });
}

const Register<AddNormArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
