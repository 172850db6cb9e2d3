// Matrix product by mma.sync, b column-major, operands swizzled in shared memory.
//   Against `mma_tn`: no padding, and the order of blocks of `mma_block_swizzle`. As in `mma_swizzle`, copies set off first
//   where sums are f32. Bound: shared memory.
#include "gemm/mma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 4;
  using A = OperandTile<Along::k, bm, bk, Swizzled>;
  using B = OperandTile<Along::k, bn, bk, Swizzled>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>()))
    matmul_mma_tn_swizzle_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring<T, Acc, Config>(p, ring, origin_by_groups<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_tn_swizzle_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads, kRingBytes<Config>),
                                                             stream, p);
  });
}

const Register<GemmArgs> registered{"mma_tn_swizzle", /*min_sm=*/80, takes_tn, launch};

}  // namespace
}  // namespace warpsmith
