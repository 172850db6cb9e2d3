// Matrix product by wgmma whose warpgroups take turns (ping-pong).
//   Against `wgmma_staged`: each of the two has tiles of its own, of 128 x 128, and multiplies while the other one converts
//   and stores: the tensor cores do not wait for an epilogue. Tiles are half as large, so that more is read from L2.
//   Occupancy: one block of 3 warpgroups in 224 KB. Bound: L2; large products the power.
#include "gemm/wgmma_roles.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Plan : TwoMultiply {
  static constexpr bool stays = true, turns = true;
  static constexpr int bm = 128, bn = 128, stages = 6, cluster = 2;
  template <class Config>
  using Store = StoreBoxes<Config>;
};

constexpr int kGroup = 4;  // rows of pairs of tiles

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    matmul_wgmma_pingpong_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
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
    launch_roles<Config, &matmul_wgmma_pingpong_kernel<Config>>(p, stream, kGroup);
  });
}

const Register<GemmArgs> registered{"wgmma_pingpong", /*min_sm=*/90,          takes_wgmma,
                                    launch,           always_suits<GemmArgs>, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
