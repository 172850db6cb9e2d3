// Matrix product by wmma, blocks in an order that L2 likes.
//   Against `wmma_dsmem`: blocks that run together cover eight rows of tiles instead of one, so that they share rows of a
//   and columns of b, and L2 serves what DRAM did. Bound: shared memory and barriers.
#include "gemm/wmma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 4, warps_n = 2, stages = 4;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>()))
    matmul_wmma_block_swizzle_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring_wmma<T, Acc, Config>(p, ring, origin_by_groups<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_block_swizzle_kernel<T, Acc>>(
        block_per_tile<Config>(p, kThreads, kRingBytes<Config>), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_block_swizzle", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
