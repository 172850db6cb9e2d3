// Attention for head dimensions past 256, q k computed again for every 128 columns of the answer.
//   Against `large_rescaled`: a block has 128 columns of the answer, in registers, and others have the rest.
//   Scores are summed by each of them: (d / 128 + 1) / 2 times the products, and no traffic but of operands.
//   Bound: the tensor cores, mostly for scores that other blocks have as well.
//   Idea: FFPA (https://github.com/DefTruth/ffpa-attn), its second level.
#include "attention/climb.h"
#include "attention/sliced.cuh"

namespace warpsmith {
namespace {

struct Config : Sliced<0, 128> {
  using Q = TokenTile<Along::k, bm, bk, Swizzled>;
  using K = TokenTile<Along::k, bn, bk, Swizzled>;
  using V = TokenTile<Along::mn, bn, bk, Swizzled>;
};

template <class T, class Acc>
__global__ void __launch_bounds__(Config::threads, 2)
    flash_attention_large_twice_kernel(const AttentionArgs a, const int parts) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_sliced<T, Acc, Acc, Config>(a, reinterpret_cast<T*>(memory), parts);
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  const int parts = a.dv > 0 ? static_cast<int>(ceil_div(a.dv, Config::columns)) : 1;
  visit_attention_types(a, [&]<class T, class Acc>() {
    warpsmith::launch<&flash_attention_large_twice_kernel<T, Acc>>(
        {query_grid(a, Config::bm, parts), Config::threads, SlicedMemory<Config>::bytes}, stream, a, parts);
  });
}

const Register<AttentionArgs> registered{"large_twice", /*min_sm=*/80, takes_heads<1024>, launch, suits_long_heads};

}  // namespace
}  // namespace warpsmith
