// Matrix product, a thread per 8 x 8 values, slices of 16 k, copies in the background.
//   Against `double_buffered` and `k16_t8x8`: packs wait for memory in shared memory, not in registers (cp.async), and
//   pass through registers for a part of a slice at a time.
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
