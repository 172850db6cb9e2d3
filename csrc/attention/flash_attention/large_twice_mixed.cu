// Attention for head dimensions past 256, q k computed again, mixed sums.
//   Against `large_twice`: scores are summed in f32, p v in f16.
//   Bound: as there.
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
    flash_attention_large_twice_mixed_kernel(const AttentionArgs a, const int parts) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_sliced<T, float, Acc, Config>(a, reinterpret_cast<T*>(memory), parts);
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  const int parts = a.dv > 0 ? static_cast<int>(ceil_div(a.dv, Config::columns)) : 1;
  warpsmith::launch<&flash_attention_large_twice_mixed_kernel<f16, f16>>(
      {query_grid(a, Config::bm, parts), Config::threads, SlicedMemory<Config>::bytes}, stream, a, parts);
}

const Register<AttentionArgs> registered{"large_twice_mixed", /*min_sm=*/80, takes_mixed_heads, launch,
                                         suits_long_heads};

}  // namespace
}  // namespace warpsmith
