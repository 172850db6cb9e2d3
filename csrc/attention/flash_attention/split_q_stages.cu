// Attention by mma.sync, the next keys on their way.
//   Against `split_q`: a ring of two stages for k, which is copied a step ahead, behind the products and the
//   softmax of the step before.
//   Bound: shared memory: the second k costs a block of every multiprocessor.
#include "attention/climb.h"
#include "attention/query_warps.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : QueryWarps<d, 64, 64> {
  static constexpr int stages = 2;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_split_q_stages_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_split_q_stages_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, QueryWarpsMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"split_q_stages", /*min_sm=*/80, takes_heads<128>, launch};

}  // namespace
}  // namespace warpsmith
