// Attention by mma.sync, the queries shared out to the warps.
//   Against `split_kv_stages`: a warp has whole rows of scores, so that maxima and sums pass no shared memory,
//   and neither do the probabilities: the registers that scores were summed in are, two by two, the operand of
//   the second product. One stage again.
//   Bound: k is waited for at every step; every warp reads all of k and v from shared memory.
//   Idea: FlashAttention-2 (https://arxiv.org/abs/2307.08691, section 3.3).
#include "attention/climb.h"
#include "attention/query_warps.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : QueryWarps<d, 64, 64> {};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_split_q_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_split_q_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, QueryWarpsMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"split_q", /*min_sm=*/80, takes_heads<128>, launch};

}  // namespace
}  // namespace warpsmith
