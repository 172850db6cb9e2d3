// Residual norm into fp8, the row held in registers.
//   Against `pack`: a row is read once. With a residual it is held as `registers` of add_norm holds it; without one half
//   as many registers do, and rows may be as long as those of rms_norm. Blocks take their places while the kernel
//   before ends. Bound: DRAM; of layer norm of 16 bits, the arithmetic.
#include "norm/add_norm/registers.cuh"
#include "norm/add_norm_fp8/alone.cuh"
#include "norm/add_norm_fp8/row.cuh"

namespace warpsmith {
namespace {

const char* takes(const AddNormFp8Args& a) {
  if (a.residual != nullptr) return needs_registers(a);
  if (const char* reason = needs_packs(a)) return reason;
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return row_bytes(a) <= kMostRowBytes ? nullptr : "needs rows of at most 128 KiB";
}

void launch(const AddNormFp8Args& a, cudaStream_t stream) {
  if (a.residual == nullptr) return launch_alone(a, stream);
  visit_add_norm_fp8(a, [&]<class Types>() { launch_registers<AddNormFewTiles>(AddNormFp8Rows<Types>(a), stream); });
}

const Register<AddNormFp8Args> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
