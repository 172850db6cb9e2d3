// Matrix product by wgmma, by clusters of two blocks that share b.
//   Against `wgmma_persistent`: the tiles of the two lie below each other, each block brings half of b to both, and so a
//   third less is read from L2. Occupancy: as `wgmma_wide`. Bound: the epilogue; large products the power.
#include "gemm/wgmma_roles.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Plan : TwoMultiply {
  static constexpr bool stays = true;
  static constexpr int bm = 128, bn = 256, stages = 4, cluster = 2;
  template <class Config>
  using Store = StorePairs<Config>;
};

constexpr int kGroup = 4;  // rows of pairs of tiles

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    matmul_wgmma_cluster_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
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
    launch_roles<Config, &matmul_wgmma_cluster_kernel<Config>>(p, stream, kGroup);
  });
}

const Register<GemmArgs> registered{"wgmma_cluster", /*min_sm=*/90,          takes_wgmma,
                                    launch,          always_suits<GemmArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
