// Matrix product by mma.sync, b column-major, with all of the above.
//   Against `mma_tn_swizzle`: fragments double-buffered in registers, 64 x 64 sums a warp, as `mma_register_dbuf`; steps
//   of 64 along k, so that a line of either operand fills the banks. What a CuTe kernel with staged, swizzled copies
//   does, written by hand. 96 KB a block: two on sm_90, one on sm_80 and sm_89.
//   Bound: tensor cores, and the two warps a scheduler to keep them busy.
#include "gemm/mma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 64, warps_m = 2, warps_n = 2, stages = 3;
  using A = OperandTile<Along::k, bm, bk, Swizzled>;
  using B = OperandTile<Along::k, bn, bk, Swizzled>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_mma_tn_stages_swizzle_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring_ahead<T, Acc, Config>(p, ring, origin_by_groups<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_tn_stages_swizzle_kernel<T, Acc>>(
        block_per_tile<Config>(p, kThreads, kRingBytes<Config>), stream, p);
  });
}

const Register<GemmArgs> registered{"mma_tn_stages_swizzle", /*min_sm=*/80, takes_tn, launch};

}  // namespace
}  // namespace warpsmith
