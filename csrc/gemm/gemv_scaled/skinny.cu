// GEMV with 8-bit weights and several vectors of 16 bits: weights streamed once for all of them.
//   Against `block`: weights and vectors pass through rings in shared memory, and the weights, widened to the type of the
//   vectors, which holds each of their values, meet them on the tensor cores. See gemm/skinny_ring.cuh. Bound: DRAM.
#include "gemm/gemv_scaled/gemv_scaled.h"
#include "gemm/skinny_ring.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const GemvScaledArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return a.x_dtype != Dtype::f32 ? nullptr : "needs x of 16 bits";
}

void launch(const GemvScaledArgs& a, cudaStream_t stream) {
  const SkinnyArgs args = with_slices(a.call, skinny_slices(a));
  dispatch_scaled(a, [&]<class W, class X>() {
    if constexpr (sizeof(X) == 2) launch_skinny_ring<W, X>(args, a.sm_count, stream);
  });
}

// Shorter rows leave warps without a share.
bool suits(const GemvScaledArgs& a) { return a.call.vectors > 2 && a.call.k >= 8 * kRingRowBytes; }

const Register<GemvScaledArgs> registered{"skinny", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
