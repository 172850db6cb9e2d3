// Residual norm into fp8, a block per row and one value an access.
//   As `naive` of add_norm; what differs is the rounding. Bound: the number of memory instructions.
#include "norm/add_norm/sweeps.cuh"
#include "norm/add_norm_fp8/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const AddNormFp8Args&) { return nullptr; }

void launch(const AddNormFp8Args& a, cudaStream_t stream) {
  visit_add_norm_fp8(a, [&]<class Types>() { launch_naive(AddNormFp8Rows<Types>(a), stream); });
}

const Register<AddNormFp8Args> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
