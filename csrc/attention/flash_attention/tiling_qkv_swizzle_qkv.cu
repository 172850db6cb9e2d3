// Attention by mma.sync, all in slices, swizzled.
//   Against `tiling_qkv_swizzle_qk`: v too: 16 KB a block.
//   Bound: as before; past 256 registers for the answer.
#include "attention/climb.h"
#include "attention/sliced.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : Sliced<d, d> {
  using Q = TokenTile<Along::k, Config::bm, Config::bk, Swizzled>;
  using K = TokenTile<Along::k, Config::bn, Config::bk, Swizzled>;
  using V = TokenTile<Along::mn, Config::bn, Config::bk, Swizzled>;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads, 1) flash_attention_tiling_qkv_swizzle_qkv_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_sliced<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128, 256>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_tiling_qkv_swizzle_qkv_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, SlicedMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"tiling_qkv_swizzle_qkv", /*min_sm=*/80, takes_heads<256>, launch};

}  // namespace
}  // namespace warpsmith
