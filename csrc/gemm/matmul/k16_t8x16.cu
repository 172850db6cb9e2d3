// Matrix product in f32, a thread per 8 x 16 values, slices of 16 k.
//   Against `k16_t8x8`: six loads from shared memory serve 128 multiplications, and a tile of 128 x 256 is read less often;
//   but its registers leave room for one block on a multiprocessor, and nobody works while that one waits.
//   Bound: barriers, which the whole multiprocessor waits at.
#include "gemm/double_buffered.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  launch_double_buffered<float, float, PackedTile<8, 16, 16>>(p, stream);
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_packed_rows(p) : "takes f32"; }

const Register<GemmArgs> registered{"k16_t8x16", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
