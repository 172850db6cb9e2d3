// Matrix product in f32, a thread per 8 x 16 values, copies in the background.
//   Against `async_t8x8`: six loads from shared memory serve 128 multiplications.
//   Bound: barriers, at which the one block of a multiprocessor waits.
#include "gemm/async_packs.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  launch_async_packs<float, float, PackedTile<8, 16, 16>>(p, stream);
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_packed_rows(p) : "takes f32"; }

const Register<GemmArgs> registered{"async_t8x16", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
