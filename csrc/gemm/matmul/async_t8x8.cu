// Matrix product, a thread per 8 x 8 values, slices of 16 k, copies in the background.
//   Against `double_buffered` and `k16_t8x8`: packs wait in shared memory for their turn, not in registers (cp.async), so
//   loads in flight cost neither registers nor the instructions that would store them.
//   Bound: issue slots, nine in ten of which multiply.
#include "gemm/async_packs.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_types(p, [&]<class T, class Acc>() { launch_async_packs<T, Acc, PackedTile<8, 8, 16>>(p, stream); });
}

const Register<GemmArgs> registered{"async_t8x8", /*min_sm=*/80, needs_packed_rows, launch};

}  // namespace
}  // namespace warpsmith
