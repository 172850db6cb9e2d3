// Attention by mma.sync, q, k and v in slices, two stages.
//   Against `tiling_qkv`: a ring of two slices, in one order without a gap: those of q and k, those of v, those
//   of the next step.
//   Bound: a barrier for every 16 products of a warp.
#include "attention/climb.h"
#include "attention/sliced.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : Sliced<d, d> {};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_tiling_qkv_stages_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_sliced<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128, 256>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_tiling_qkv_stages_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, SlicedMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"tiling_qkv_stages", /*min_sm=*/80, takes_heads<256>, launch};

}  // namespace
}  // namespace warpsmith
