// Matrix product of 16-bit operands, a thread per 8 x 8 values, slices of 32 k, copies in the background.
//   Against `async_t8x8`: twice the slice halves the barriers.
//   Bound: issue slots.
#include "gemm/async_packs.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() { launch_async_packs<T, Acc, PackedTile<8, 8, 32>>(p, stream); });
}

const Register<GemmArgs> registered{"async_k32_t8x8", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
