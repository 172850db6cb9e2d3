// Matrix product by wmma, two stages of operands, filled by cp.async.
//   Against `wmma_warp2x4`: while one stage is multiplied the other fills, past the registers, and one barrier a step is
//   enough. Bound: a step's loads are started only one step ahead.
#include "gemm/wmma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 4, warps_n = 2, stages = 2;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>()))
    matmul_wmma_dbuf_async_kernel(const GemmArgs p) {
  __shared__ Stage<T, Config::A, Config::B> ring[Config::stages];
  multiply_ring_wmma<T, Acc, Config>(p, ring, origin_by_rows<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_dbuf_async_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_dbuf_async", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
