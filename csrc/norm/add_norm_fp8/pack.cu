// Residual norm into fp8, one access of 16 bytes at a time on the wider of x and residual.
//   Against `naive`: the fewest, widest loads; y leaves in a quarter or half of their width. Bound: h, or x, is read back,
//   from L2 where it still lies there.
#include "norm/add_norm/sweeps.cuh"
#include "norm/add_norm_fp8/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const AddNormFp8Args& a) { return needs_packs(a); }

void launch(const AddNormFp8Args& a, cudaStream_t stream) {
  visit_add_norm_fp8(a, [&]<class Types>() { launch_pack(AddNormFp8Rows<Types>(a), stream); });
}

const Register<AddNormFp8Args> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
