// Matrix product by wmma, fragments of 32 x 8.
//   Against `wmma_dbuf_async`: the instruction's other shape, 2 x 4 warps of 2 x 4 fragments each. The tensor cores do
//   the same work, either shape being two of mma.m16n8k16, and as many bytes of operands are read, but by eight ldmatrix
//   for 16 values of k instead of six: a fragment of 8 columns is half of what one brings. What there is to gain is
//   nothing. Such fragments start on 16 bytes, where load_matrix_sync asks for 32 (device/ptx/wmma.h).
//   Bound: as `wmma_dbuf_async`.
#include "gemm/wmma_ring.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 2;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config, Acc>()))
    matmul_wmma_m32n8k16_kernel(const GemmArgs p) {
  __shared__ Stage<T, Config::A, Config::B> ring[Config::stages];
  multiply_ring_wmma<T, Acc, Config, Wmma32x8>(p, ring, origin_by_rows<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_m32n8k16_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_m32n8k16", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
