// Scaled product of int8 matrices by mma.sync m16n8k32.
//   Against `naive`: the pipeline of matmul's `mma_peak`, with twice the values for a byte and a multiplication; sums are
//   exact in int32 and scaled once. Occupancy: as `mma_peak`, whose tiles these are.
//   Bound: tensor cores, whose int8 rate is twice that of f16.
#include "gemm/scaled_matmul/mma.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const ScaledMatmulArgs& p) {
  if (p.dtype != Dtype::i8) return "takes i8";
  if (const char* reason = needs_scaled_mma(p)) return reason;
  if (const char* reason = needs_scales_of_all_k(p)) return reason;
  return needs_countable_sums(p);
}

void launch(const ScaledMatmulArgs& p, cudaStream_t stream) {
  dispatch_out(p.out, [&]<class Out>() {
    using Types = ScaledTypes<int8_t, int32_t, Out>;
    if (has_little_shared_memory(p.sm)) {
      if (fills_gpu<MediumTile>(p)) return launch_scaled<Types, MediumTile, kSharedOfSm89>(p, stream);
    } else if (fills_gpu<LargeTile>(p)) {
      return launch_scaled<Types, LargeTile, kSharedOfSm80>(p, stream);
    }
    launch_scaled<Types, SmallTile, kSharedOfSm89>(p, stream);
  });
}

const Register<ScaledMatmulArgs> registered{"mma_i8", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
