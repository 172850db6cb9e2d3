// Matrix product by wgmma whose results leave by the copy engine.
//   Against `wgmma_cluster`: sums go to shared memory by stmatrix, box by box, without bank conflicts, and from there in
//   whole lines while the warpgroup fills the next box, or multiplies the next tile.
//   Occupancy: one block of 3 warpgroups in 224 KB. Bound: large products the power; smaller ones the last wave of tiles.
#include "gemm/wgmma_roles.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Plan : TwoMultiply {
  static constexpr bool stays = true;
  static constexpr int bm = 128, bn = 256, stages = 4, cluster = 2;
  template <class Config>
  using Store = StoreBoxes<Config>;
};

constexpr int kGroup = 4;  // rows of pairs of tiles

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    matmul_wgmma_staged_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
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
    launch_roles<Config, &matmul_wgmma_staged_kernel<Config>>(p, stream, kGroup);
  });
}

const Register<GemmArgs> registered{"wgmma_staged", /*min_sm=*/90,          takes_wgmma,
                                    launch,         always_suits<GemmArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
