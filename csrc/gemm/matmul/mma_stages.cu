// Matrix product by mma.sync, operands on their way while others are multiplied.
//   Against `mma_warp4x4`: a ring of four stages that cp.async fills three steps ahead, past the registers, and one
//   barrier a step instead of two. Steps are 16 along k, so that the ring fits the 48 KB that every kernel may use.
//   Bound: shared memory, which a step reads twice over, and the barrier of every step.
#include "gemm/mma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 16, warps_m = 2, warps_n = 4, stages = 4;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_mma_stages_kernel(const GemmArgs p) {
  __shared__ Stage<T, Config::A, Config::B> ring[Config::stages];
  multiply_ring<T, Acc, Config>(p, ring, origin_by_rows<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_mma_stages_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"mma_stages", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
