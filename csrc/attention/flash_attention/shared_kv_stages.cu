// Attention by mma.sync, k and v in turns in two places.
//   Against `shared_kv`: in as much memory as `split_q`, v is copied while scores are summed, and the next k
//   while v is multiplied: each copy has a product to hide behind, and a step has two barriers.
//   Bound: registers: the products of a step and the sums so far, both as large as the answer.
#include "attention/climb.h"
#include "attention/query_warps.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : QueryWarps<d, 64, 64> {
  static constexpr Memory memory = Memory::shared_kv;
  static constexpr int stages = 2;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_shared_kv_stages_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_shared_kv_stages_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, QueryWarpsMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"shared_kv_stages", /*min_sm=*/80, takes_heads<128>, launch};

}  // namespace
}  // namespace warpsmith
