// Matrix product by wmma, tiles of 128 x 128: 4 x 2 warps, 2 x 4 fragments of 16 x 16 each.
//   Against `wmma_mma4x2`: a warp reads six fragments of operands for eight multiplications, where it read two for one,
//   and blocks load three times less for a product. Bound: loads and multiplications take turns.
#include "gemm/wmma_turns.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 128, bn = 128, bk = 32, warps_m = 4, warps_n = 2;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_wmma_warp2x4_kernel(const GemmArgs p) {
  __shared__ TurnsMemory<T, Acc, Config> shared;
  multiply_in_turns(p, shared, origin_by_rows<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_warp2x4_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_warp2x4", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
