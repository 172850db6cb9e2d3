// Matrix product in f16, a thread per 16 x 8 values, slices of 32 k, copies in the background.
//   Against `async_k32_t8x8`: a value of b is multiplied 16 times and a tile of 256 x 128 is read less often. Sums are f16
//   only: in f32, its buffers would take 121 KB of shared memory.
//   Bound: issue slots.
#include "gemm/async_packs.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) { launch_async_packs<f16, f16, PackedTile<16, 8, 32>>(p, stream); }

const char* takes(const GemmArgs& p) {
  return p.accumulator == Dtype::f16 ? needs_packed_rows(p) : "accumulates in f16";
}

const Register<GemmArgs> registered{"async_k32_t16x8", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
