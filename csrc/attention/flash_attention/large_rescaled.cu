// Attention for head dimensions past 256, the answer in global memory.
//   Against `tiling_qkv_swizzle_qkv`: registers do not grow with the head dimension either. At every step, the
//   sums so far are read 32 columns at a time, scaled, added to and written back.
//   Bound: L2, through which the whole answer passes in f32 for every 64 keys, both ways.
//   Idea: FFPA (https://github.com/DefTruth/ffpa-attn), its third level.
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
__global__ void __launch_bounds__(Config::threads, 2) flash_attention_large_rescaled_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_sliced<T, Acc, Acc, Config>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    warpsmith::launch<&flash_attention_large_rescaled_kernel<T, Acc>>(
        {query_grid(a, Config::bm), Config::threads, SlicedMemory<Config>::bytes}, stream, a);
  });
}

const Register<AttentionArgs> registered{"large_rescaled", /*min_sm=*/80, takes_heads<1024>, launch, suits_long_heads};

}  // namespace
}  // namespace warpsmith
