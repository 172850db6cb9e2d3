// Matrix product in f32, a thread per 8 x 4 values, slices of 16 k.
//   Against `double_buffered`: twice the slice halves the barriers; half the tile, 128 x 64, halves the registers, so
//   blocks hide more of each other's waiting and small products have twice the blocks.
//   Bound: loads from shared memory, three for 32 multiplications.
#include "gemm/double_buffered.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  launch_double_buffered<float, float, PackedTile<8, 4, 16>>(p, stream);
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_packed_rows(p) : "takes f32"; }

const Register<GemmArgs> registered{"k16_t8x4", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
