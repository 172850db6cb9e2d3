// Matrix product by wmma, tiles of 64 x 32: 4 x 2 warps, one fragment of 16 x 16 each.
//   Against `wmma_naive`: the block copies its operands once for all its warps, so that a value of a is loaded for 32
//   columns and one of b for 64 rows. Bound: the wait for loads and two barriers a step.
#include "gemm/wmma_turns.cuh"

namespace warpsmith {
namespace {

struct Config {
  static constexpr int bm = 64, bn = 32, bk = 32, warps_m = 4, warps_n = 2;
  using A = OperandTile<Along::k, bm, bk, Padded>;
  using B = OperandTile<Along::mn, bn, bk, Padded>;
};
constexpr int kThreads = Share<Config>::threads;

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 4) matmul_wmma_mma4x2_kernel(const GemmArgs p) {
  __shared__ TurnsMemory<T, Acc, Config> shared;
  multiply_in_turns(p, shared, origin_by_rows<Config>(p));
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_mma4x2_kernel<T, Acc>>(block_per_tile<Config>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_mma4x2", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
