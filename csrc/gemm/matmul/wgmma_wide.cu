// Matrix product by wgmma of tiles of 128 x 256.
//   Against `wgmma_roles`: two warpgroups multiply, each with 64 rows of the widest instruction, m64n256k16, which reads the
//   least of shared memory for what it computes; both read the same b. Registers go from the warpgroup that copies to them.
//   Occupancy: one block of 3 warpgroups in 192 KB; 232 registers of 128 sums.
//   Bound: L2, from which blocks in flight read more than they need to, and the epilogue.
#include "gemm/wgmma_roles.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Plan : TwoMultiply {
  static constexpr int bm = 128, bn = 256, stages = 4;
  template <class Config>
  using Store = StorePairs<Config>;
};

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    matmul_wgmma_wide_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
                             [[maybe_unused]] const __grid_constant__ CUtensorMap b,
                             [[maybe_unused]] const __grid_constant__ CUtensorMap d,
                             [[maybe_unused]] const WgmmaTiles tiles) {
#if WARPSMITH_HAS_WGMMA
  multiply_by_roles<Config>(a, b, d, tiles);
#endif
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  dispatch_wgmma(p, [&]<class T, Along a, Along b>() {
    using Config = WgmmaRoles<T, a, b, Plan>;
    launch_roles<Config, &matmul_wgmma_wide_kernel<Config>>(p, stream, /*group=*/1);
  });
}

const Register<GemmArgs> registered{"wgmma_wide", /*min_sm=*/90, takes_wgmma, launch};

}  // namespace
}  // namespace warpsmith
