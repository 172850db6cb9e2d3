// Matrix product of 16-bit operands, a thread per 8 x 8 values, slices of 32 k.
//   Against `double_buffered`: twice the slice halves the barriers, at the price of twice the packs held in registers.
//   Bound: issue slots.
#include "gemm/double_buffered.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  using Tile = PackedTile<8, 8, 32>;
  if (p.accumulator == Dtype::f16) return launch_double_buffered<f16, f16, Tile>(p, stream);
  p.dtype == Dtype::f16 ? launch_double_buffered<f16, float, Tile>(p, stream)
                        : launch_double_buffered<bf16, float, Tile>(p, stream);
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  return needs_packed_rows(p);
}

const Register<GemmArgs> registered{"k32_t8x8", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
