// Matrix product by mma.sync, fragments double-buffered in registers.
//   Against `mma_swizzle`: the operands of the next 16 along k are read from shared memory while these are multiplied,
//   across barriers too, so that no mma waits for ldmatrix. The registers for that come from half as many threads:
//   four warps of 64 x 64 sums, which read a third less of shared memory for a multiplication.
//   Two blocks of 128 threads and 64 KB on sm_80 and sm_90. Bound: two warps a scheduler, often both at a barrier.
#include "gemm/mma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 2, stages = 4;
  using A = OperandTile<Along::k, bm, bk, Swizzled>;
  using B = OperandTile<Along::mn, bn, bk, Swizzled>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_mma_register_dbuf_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring_ahead<T, Acc, Config>(p, ring, origin_by_groups<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_register_dbuf_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads, kRingBytes<Config>),
                                                                stream, p);
  });
}

const Register<GemmArgs> registered{"mma_register_dbuf", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
