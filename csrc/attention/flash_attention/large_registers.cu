// Attention for head dimensions past 256, the answer in registers.
//   Against `large_twice`: scores are summed once. The answer's columns are shared out to eight warps, which exchange
//   probabilities through shared memory once for every 128 keys; k and v pass it in slices, in a ring.
//   Occupancy: one block of 8 warps, up to 255 registers a thread, of which the answer takes 80 to 128.
//   Bound: L2, which every 64 queries (32 past 512) read all of k and v from; barriers, one a slice.
//   Idea: FFPA (https://github.com/DefTruth/ffpa-attn), its first level, which has 16 queries a warp.
#include "attention/large_tiles.cuh"

namespace warpsmith {
namespace {

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads, 1) flash_attention_large_registers_kernel(const AttentionArgs a) {
  if constexpr (kMayHave<C::needs>) {
    extern __shared__ __align__(128) uint4 memory[];
    attend_together<T, Acc, Acc, C>(a, memory);
  }
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_large_tiles(a, [&]<class C>() {
      warpsmith::launch<&flash_attention_large_registers_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, C::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"large_registers", /*min_sm=*/80, takes_large_heads, launch, suits_long_heads};

}  // namespace
}  // namespace warpsmith
