// Matrix product of 16-bit operands, a thread per 16 x 8 values, slices of 32 k.
//   Against `k32_t8x8`: a value of b is multiplied 16 times and a tile of 256 x 128 is read less often. With sums in f32,
//   its registers and 97 KB of shared memory leave room for one block on a multiprocessor.
//   Bound: issue slots; barriers where one block is alone.
#include "gemm/double_buffered.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  using Tile = PackedTile<16, 8, 32>;
  if (p.accumulator == Dtype::f16) return launch_double_buffered<f16, f16, Tile>(p, stream);
  p.dtype == Dtype::f16 ? launch_double_buffered<f16, float, Tile>(p, stream)
                        : launch_double_buffered<bf16, float, Tile>(p, stream);
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  return needs_packed_rows(p);
}

const Register<GemmArgs> registered{"k32_t16x8", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
