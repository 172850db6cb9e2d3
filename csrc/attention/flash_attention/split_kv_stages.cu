// Attention by mma.sync, keys shared out to the warps, the next operands on their way.
//   Against `split_kv`: k and v take turns in a ring of two stages. v is copied while scores are summed, and the next k
//   while v is multiplied.
//   Bound: the scores' way through shared memory, and the barriers that it takes.
#include "attention/climb.h"
#include "attention/key_warps.cuh"

namespace warpsmith {
namespace {

template <int d_>
struct Tile {
  static constexpr int d = d_, bm = 64, bn = 64, bk = d, bv = bn, stages = 2, warps = 4, qm = 1;
  static constexpr float slack = 0.0f;
  static constexpr bool pair = false;
  template <int lines, int length>
  using Layout = Padded<lines, length>;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_split_kv_stages_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend_together<T, Acc, Acc, C>(a, memory);
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128>(a, [&]<int d>() {
      using C = KeyWarps<Tile<d>>;
      warpsmith::launch<&flash_attention_split_kv_stages_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, C::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"split_kv_stages", /*min_sm=*/80, takes_heads<128>, launch};

}  // namespace
}  // namespace warpsmith
