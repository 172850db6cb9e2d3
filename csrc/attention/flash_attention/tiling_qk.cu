// Attention by mma.sync, q and k in slices of the head dimension.
//   Against `split_q_stages`: q and k pass shared memory 32 values of the head dimension at a time, v comes along
//   in parts: memory for q and k no longer grows with the head dimension.
//   Bound: q, which every step reads from L2 again; a barrier for every 16 products of a warp.
#include "attention/climb.h"
#include "attention/sliced.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : Sliced<d, d> {
  static constexpr bool whole_v = true;
  using V = TokenTile<Along::mn, Config::bn, d, Padded>;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_tiling_qk_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_sliced<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_tiling_qk_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, SlicedMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"tiling_qk", /*min_sm=*/80, takes_heads<128>, launch};

}  // namespace
}  // namespace warpsmith
