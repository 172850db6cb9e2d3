// Matrix product of 16-bit operands, a thread per 8 x 8 values, slices of 32 k.
//   Against `double_buffered`: twice the slice halves the barriers, at the price of twice the packs held in registers.
//   Of sums in f16, a value of a fills a register, twice: both pipes for halves take that. Bound: issue slots.
#include "gemm/double_buffered.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() { launch_double_buffered<T, Acc, PackedTile<8, 8, 32>>(p, stream); });
}

const Register<GemmArgs> registered{"k32_t8x8", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
