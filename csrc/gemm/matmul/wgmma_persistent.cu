// Matrix product by wgmma, by blocks that stay.
//   Against `wgmma_wide`: as many blocks as multiprocessors, each of which takes tile after tile, so that the copies of the
//   next tile come while the one before is stored; and tiles in groups of rows, so that what blocks in flight read of a and
//   b fits L2. Occupancy: as `wgmma_wide`. Bound: L2, and the epilogue.
#include "gemm/wgmma_roles.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Plan : TwoMultiply {
  static constexpr bool stays = true;
  static constexpr int bm = 128, bn = 256, stages = 4;
  template <class Config>
  using Store = StorePairs<Config>;
};

constexpr int kGroup = 8;  // rows of tiles

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    matmul_wgmma_persistent_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
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
    launch_roles<Config, &matmul_wgmma_persistent_kernel<Config>>(p, stream, kGroup);
  });
}

const Register<GemmArgs> registered{"wgmma_persistent", /*min_sm=*/90, takes_wgmma, launch};

}  // namespace
}  // namespace warpsmith
