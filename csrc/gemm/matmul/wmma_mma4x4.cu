// Matrix product by wmma, 4 x 4 warps on a tile.
//   Against `wmma_warp4x4`: twice the warps, four a scheduler, so that one multiplies while others wait for fragments.
//   Where sums are f16, a warp still has 4 x 4 fragments of 16 x 16 and the tile is 256 x 256, whose operands are read less
//   often; 81 KB in steps of 16 along k. Sums in f32 leave registers for 2 x 4 fragments: a tile of 128 x 256, 80 KB, each
//   warp reads more of shared memory for a multiplication again. One block of 512 threads. Bound: shared memory.
#include "gemm/wmma_ring.cuh"

namespace warpsmith {
namespace {

template <class Acc>
struct Config {
  static constexpr bool narrow = sizeof(Acc) == 4;
  static constexpr int bm = narrow ? 128 : 256, bn = 256, bk = narrow ? 32 : 16, warps_m = 4, warps_n = 4;
  static constexpr int stages = narrow ? 3 : 4;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config<float>>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 1) matmul_wmma_mma4x4_kernel(const GemmArgs p) {
  extern __shared__ __align__(128) uint4 ring[];
  multiply_ring_wmma<T, Acc, Config<Acc>>(p, ring, origin_by_groups<Config<Acc>>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_mma4x4_kernel<T, Acc>>(
        block_per_tile<Config<Acc>>(p, kThreads, kRingBytes<Config<Acc>>), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_mma4x4", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
