// Matrix product in f32, a thread per 8 x 8 values, slices of 16 k.
//   Against `k16_t8x4`: twice the columns, so four loads from shared memory serve 64 multiplications; sums are gone
//   through by columns, there and back, which spares register banks.
//   Bound: issue slots, nine in ten of which multiply.
#include "gemm/double_buffered.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  launch_double_buffered<float, float, PackedTile<8, 8, 16>>(p, stream);
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_packed_rows(p) : "takes f32"; }

const Register<GemmArgs> registered{"k16_t8x8", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
