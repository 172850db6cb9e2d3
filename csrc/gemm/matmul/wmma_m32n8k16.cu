// Matrix product by wmma, fragments of 32 x 8.
//   Against `wmma_dbuf_async`: the instruction's other shape, 2 x 4 warps of 2 x 4 fragments each. The tensor cores do
//   the same work, and operands are read alike: what there is to gain is nothing, and is seen here in bf16. In f16,
//   load_matrix_sync asks for fragments on 32 bytes, which those of 8 columns are only in lines woven into each other; that
//   tears the two halves of every 32 bytes that come from L2 apart, and costs a third. Bound: as `wmma_dbuf_async`.
#include "gemm/wmma_ring.cuh"

namespace warpsmith {
namespace {

template <class T>
struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 2, warps_n = 4, stages = 2;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using WovenB = OperandTile<Along::mn, bn, bk, Woven>;
  using B = std::conditional_t<std::is_same_v<T, f16>, WovenB, OperandTile<Along::mn, bn, bk, Padded>>;
};
constexpr int kThreads = Share<Config<f16>>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, (ring_blocks<Config<T>, Acc>()))
    matmul_wmma_m32n8k16_kernel(const GemmArgs p) {
  __shared__ Stage<T, typename Config<T>::A, typename Config<T>::B> ring[Config<T>::stages];
  multiply_ring_wmma<T, Acc, Config<T>, Wmma32x8>(p, ring, origin_by_rows<Config<T>>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_m32n8k16_kernel<T, Acc>>(block_per_tile<Config<T>>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_m32n8k16", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
