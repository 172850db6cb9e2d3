// Matrix product by mma.sync, b column-major.
//   Against `mma_dsmem`: both operands run along k, as mma wants them, and ldmatrix transposes neither. What the layout
//   of BLAS's TN is worth by itself: nothing is padded or ordered better. Bound: as `mma_dsmem`.
#include "gemm/mma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 4;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::k, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>())) matmul_mma_tn_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring<T, Acc, Config>(p, ring, origin_by_rows<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_tn_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads, kRingBytes<Config>), stream,
                                                     p);
  });
}

const Register<GemmArgs> registered{"mma_tn", /*min_sm=*/80, takes_tn, launch};

}  // namespace
}  // namespace warpsmith
