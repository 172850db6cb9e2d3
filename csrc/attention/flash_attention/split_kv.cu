// Attention by mma.sync, keys shared out to the warps.
//   Against `fused`: each key is read once. A running maximum takes the place of the first sweep: sums so far shrink when it
//   grows. Of the scores of 64 queries, each warp has those of 16 of 64 keys; maxima, sums and probabilities pass shared
//   memory.
//   Bound: waiting, for k, for v and for each other, five times a step.
//   Idea: FlashAttention (https://arxiv.org/abs/2205.14135).
#include "attention/climb.h"
#include "attention/key_warps.cuh"

namespace warpsmith {
namespace {

template <int d_>
struct Tile {
  static constexpr int d = d_, bm = 64, bn = 64, bk = d, bv = bn, stages = 1, warps = 4, qm = 1;
  static constexpr float slack = 0.0f;
  static constexpr bool pair = false;
  template <int lines, int length>
  using Layout = Padded<lines, length>;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads, 1) flash_attention_split_kv_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_together<T, Acc, Acc, C>(a, memory);
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128>(a, [&]<int d>() {
      using C = KeyWarps<Tile<d>>;
      warpsmith::launch<&flash_attention_split_kv_kernel<T, Acc, C>>({query_grid(a, C::bm), C::threads, C::bytes},
                                                                     stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"split_kv", /*min_sm=*/80, takes_heads<128>, launch};

}  // namespace
}  // namespace warpsmith
