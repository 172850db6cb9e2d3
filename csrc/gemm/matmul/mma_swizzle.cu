// Matrix product by mma.sync, operands swizzled in shared memory.
//   Against `mma_block_swizzle`: exclusive-or of the chunk's number with its line's spreads a column of chunks over all
//   banks, which padding did by wasting a chunk a line. 64 KB a block, and lines that start where banks do.
//   Where sums are f32, copies set off before the reads again, which is faster here.
//   Bound: shared memory: a warp's 64 x 32 sums need 3 KB of operands for every step of 16.
#include "gemm/mma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 4;
  using A = OperandTile<Along::k, bm, bk, Swizzled>;
  using B = OperandTile<Along::mn, bn, bk, Swizzled>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>())) matmul_mma_swizzle_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring<T, Acc, Config>(p, ring, origin_by_groups<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_swizzle_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads, kRingBytes<Config>),
                                                          stream, p);
  });
}

const Register<GemmArgs> registered{"mma_swizzle", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
