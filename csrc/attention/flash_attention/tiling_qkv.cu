// Attention by mma.sync, q, k and v in slices of the head dimension, one stage.
//   Against `tiling_qk`: v passes in slices as well, in the places of q and k: shared memory for a block is 10 KB
//   whatever the head dimension.
//   Bound: waiting for each slice.
#include "attention/climb.h"
#include "attention/sliced.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : Sliced<d, d> {
  static constexpr int stages = 1;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_tiling_qkv_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_sliced<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128, 256>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_tiling_qkv_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, SlicedMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"tiling_qkv", /*min_sm=*/80, takes_heads<256>, launch};

}  // namespace
}  // namespace warpsmith
