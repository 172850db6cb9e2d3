// Matrix product by wmma, a ring of four stages.
//   Against `wmma_dbuf_async`: loads are started three steps ahead, long enough for DRAM to answer. Steps are 16 along k,
//   so that the ring fits the 48 KB that every kernel may use. Bound: shared memory, and the barrier of every step.
#include "gemm/wmma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 16, warps_m = 4, warps_n = 2, stages = 4;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>())) matmul_wmma_stages_kernel(const GemmArgs p) {
  __shared__ Stage<T, Config::A, Config::B> ring[Config::stages];
  multiply_ring_wmma<T, Acc, Config>(p, ring, origin_by_rows<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_stages_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_stages", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
