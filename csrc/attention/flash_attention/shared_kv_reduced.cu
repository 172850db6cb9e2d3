// Attention by mma.sync, half of the registers for sums.
//   Against `shared_kv_stages`: sums so far are scaled where they are, and p v is added to them by the tensor
//   cores, instead of to sums of its own, which are then added by hand: half of the registers, and no limit at
//   128.
//   Bound: the scaling stands between the softmax and the second product.
#include "attention/climb.h"
#include "attention/query_warps.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : QueryWarps<d, 64, d <= 128 ? 64 : 32> {
  static constexpr Memory memory = Memory::shared_kv;
  static constexpr int stages = 2;
  static constexpr bool in_place = true;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_shared_kv_reduced_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  attend<T, Acc, Acc, C>(a, reinterpret_cast<T*>(memory));
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128, 256>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_shared_kv_reduced_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, QueryWarpsMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"shared_kv_reduced", /*min_sm=*/80, takes_heads<256>, launch};

}  // namespace
}  // namespace warpsmith
