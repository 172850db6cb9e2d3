// Attention for head dimensions past 256, the answer in global memory, mixed sums.
//   Against `large_rescaled`: scores are summed in f32, p v in f16: half as much of the answer to move.
//   Bound: as there.
#include "attention/climb.h"
#include "attention/flash_attention/workspace.h"
#include "attention/sliced.cuh"

namespace warpsmith {
namespace {

struct Config : Sliced<0, 0> {
  using Q = TokenTile<Along::k, bm, bk, Swizzled>;
  using K = TokenTile<Along::k, bn, bk, Swizzled>;
  using V = TokenTile<Along::mn, bn, bk, Swizzled>;
  static_assert(bm == kRescaledQueries && bk == kRescaledSlice, "as the workspace was made for");
};

template <class T, class Acc>
__global__ void __launch_bounds__(Config::threads, 2)
    flash_attention_large_rescaled_mixed_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_sliced<T, float, Acc, Config>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  warpsmith::launch<&flash_attention_large_rescaled_mixed_kernel<f16, f16>>(
      {query_grid(a, Config::bm), Config::threads, SlicedMemory<Config>::bytes}, stream, a);
}

const Register<AttentionArgs> registered{"large_rescaled_mixed", /*min_sm=*/80, takes_mixed_heads, launch,
                                         suits_long_heads};

}  // namespace
}  // namespace warpsmith
