// Matrix product by mma.sync, operands on their way while others are multiplied.
//   Against `mma_warp4x4`: a ring of two stages that cp.async fills a step ahead, past the registers, half before the
//   first fragments are read and half behind them, and one barrier a step instead of two. Two stages of 32 along k fit
//   the 48 KB that every kernel may use.
//   Bound: a step's loads are started only one step ahead; shared memory, which a step reads twice over.
#include "gemm/mma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 2;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>())) matmul_mma_stages_kernel(const GemmArgs p) {
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
