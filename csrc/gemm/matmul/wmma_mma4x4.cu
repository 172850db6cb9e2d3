// Matrix product by wmma, tiles of 256 x 128: 4 x 4 warps, 4 x 2 fragments of 16 x 16 each.
//   Against `wmma_warp4x4`: twice the warps on the same tile, four a scheduler, so that one multiplies while others wait
//   for fragments; each reads more of shared memory for a multiplication again. One block of 512 threads of up to 128
//   registers, 86 KB. Bound: shared memory.
#include "gemm/wmma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 256, bn = 128, bk = 32, warps_m = 4, warps_n = 4, stages = 3;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 1) matmul_wmma_mma4x4_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring_wmma<T, Acc, Config>(p, ring, origin_by_groups<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_mma4x4_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads, kRingBytes<Config>),
                                                          stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_mma4x4", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
