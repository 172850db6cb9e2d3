// Matrix product in f32, a thread per 8 x 4 values, copies in the background.
//   Against `k16_t8x4`: packs wait in shared memory for their turn, not in registers (cp.async).
//   Bound: loads from shared memory, three for 32 multiplications.
#include "gemm/async_packs.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  launch_async_packs<float, float, PackedTile<8, 4, 16>>(p, stream);
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_packed_rows(p) : "takes f32"; }

const Register<GemmArgs> registered{"async_t8x4", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
