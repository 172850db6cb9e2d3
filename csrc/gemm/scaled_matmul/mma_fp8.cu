// Scaled product of fp8 matrices, each of either format, by mma.sync m16n8k32.
//   Against `naive`: the pipeline of matmul's `mma_peak`. sm_89 multiplies fp8 at twice the rate of f16. sm_90 has fp8
//   tensor cores for wgmma only: there the compiler widens fragments to f16, so that only memory is saved, and a warp's
//   share of 32 x 32 leaves registers for that.
//   Scales of blocks multiply the sums of 128 values of k as these join the others (block_sums.cuh).
//   Occupancy: wide, 180 registers (143 on sm_89), 218 (145) with scales of blocks, x 256 threads and 72 KB, 1 block;
//   narrow, 184 (150) or 214 (148) x 128 and 48 KB, 2 blocks.
//   Bound: tensor cores.
#include <type_traits>

#include "gemm/scaled_matmul/mma.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct WideTile {
  static constexpr int bm = 128, bn = 64, bk = 64, warps_m = 4, warps_n = 2, stages = 3, blocks = 1;
};
struct NarrowTile {
  static constexpr int bm = 64, bn = 64, bk = 64, warps_m = 2, warps_n = 2, stages = 3, blocks = 2;
};

const char* takes(const ScaledMatmulArgs& p) { return is_fp8(p.dtype) ? needs_scaled_mma(p) : "takes e4m3 and e5m2"; }

template <class Types>
void launch_types(const ScaledMatmulArgs& p, cudaStream_t stream) {
  if (fills_gpu<WideTile>(p)) return launch_scaled<Types, WideTile, kSharedOfSm89>(p, stream);
  launch_scaled<Types, NarrowTile, kSharedOfSm89>(p, stream);
}

// Operands of one format and scales of all k, the common calls, have a kernel for each type of the result; others share
// one.
void launch(const ScaledMatmulArgs& p, cudaStream_t stream) {
  dispatch_formats(p, [&]<class QA, class QB>() {
    using Products = Fp8Products<QA, QB>;
    if (p.blocks) return launch_types<BlockScaledTypes<Products>>(p, stream);
    if constexpr (std::is_same_v<QA, QB>) {
      dispatch_out(p.out, [&]<class Out>() { launch_types<ScaledTypes<Products, float, Out>>(p, stream); });
    } else {
      launch_types<ScaledTypes<Products, float, AnyOut>>(p, stream);
    }
  });
}

const Register<ScaledMatmulArgs> registered{"mma_fp8", /*min_sm=*/89, takes, launch};

}  // namespace
}  // namespace warpsmith
