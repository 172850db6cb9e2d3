// Matrix product by mma.sync, the ring in dynamic shared memory.
//   Against `mma_stages`: beyond 48 KB the ring has four stages, so that loads are started three steps ahead, long enough
//   for DRAM to answer. 74 KB a block: on sm_90 three blocks where sums are f16 and two where they are f32, two on sm_80,
//   one on sm_89. Bound: shared memory, and L2, from which each row of blocks reads all of b.
#include "gemm/mma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 4;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>())) matmul_mma_dsmem_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring<T, Acc, Config>(p, ring, origin_by_rows<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_dsmem_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads, kRingBytes<Config>), stream,
                                                        p);
  });
}

const Register<GemmArgs> registered{"mma_dsmem", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
