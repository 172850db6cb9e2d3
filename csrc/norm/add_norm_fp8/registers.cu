// Residual norm into fp8, the row held in registers.
//   Against `pack`: a row is read once, as `registers` of add_norm has it. Bound: DRAM.
#include "norm/add_norm/registers.cuh"
#include "norm/add_norm_fp8/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const AddNormFp8Args& a) { return needs_registers(a); }

void launch(const AddNormFp8Args& a, cudaStream_t stream) {
  visit_add_norm_fp8(a, [&]<class Types>() { launch_registers<AddNormFewTiles>(AddNormFp8Rows<Types>(a), stream); });
}

const Register<AddNormFp8Args> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
