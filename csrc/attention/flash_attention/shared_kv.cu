// Attention by mma.sync, k and v in one place.
//   Against `split_q`: v is copied to where k was as soon as all warps have read it: a third less memory, so more
//   blocks, which work while others wait.
//   Bound: waiting: of k nothing, of v the softmax hides.
#include "attention/climb.h"
#include "attention/query_warps.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : QueryWarps<d, 64, 64> {
  static constexpr Memory memory = Memory::shared_kv;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_shared_kv_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_shared_kv_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, QueryWarpsMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"shared_kv", /*min_sm=*/80, takes_heads<128>, launch};

}  // namespace
}  // namespace warpsmith
