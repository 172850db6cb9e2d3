// Matrix product by wgmma whose warps have roles.
//   Against `wgmma_tma`: a thread of a warpgroup of its own starts the copies, as far ahead as the ring is deep, and those
//   that multiply do nothing else: no barrier of the block is left in the main loop.
//   Occupancy: one block of 2 warpgroups in 128 KB. Bound: the copies' wait for L2, and the epilogue, under which nothing runs.
#include "gemm/wgmma_roles.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Plan : RolesPlan {
  static constexpr int bm = 128, bn = 128, stages = 6, warpgroups = 1;
  template <class Config>
  using Store = StorePairs<Config>;
};

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    matmul_wgmma_roles_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
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
    launch_roles<Config, &matmul_wgmma_roles_kernel<Config>>(p, stream, /*group=*/1);
  });
}

const Register<GemmArgs> registered{"wgmma_roles", /*min_sm=*/90, takes_wgmma, launch};

}  // namespace
}  // namespace warpsmith
