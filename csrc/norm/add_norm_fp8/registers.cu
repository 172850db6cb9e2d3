// Residual norm into fp8, the row held in registers.
//   Against `pack`: a row is read once. With a residual it is held as `registers` of add_norm holds it; without one half
//   as many registers do, and rows may be as long as those of rms_norm. Blocks take their places while the kernel
//   before ends. Bound: DRAM; of layer norm of 16 bits, the arithmetic.
#include "norm/forward/registers.cuh"

namespace warpsmith {
namespace {

const char* takes(const AddNormFp8Args& a) {
  return a.residual != nullptr ? needs_sum_registers(a) : needs_lone_rows<kMostRowBytes>(a);
}

void launch(const AddNormFp8Args& a, cudaStream_t stream) {
  a.residual != nullptr ? launch_norm_registers<OfSumToFp8>(a, stream) : launch_norm_registers<OfXToFp8>(a, stream);
}

const Register<AddNormFp8Args> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
