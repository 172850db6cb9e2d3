// Attention for head dimensions past 256, scores summed in f32 and p v in f16.
//   Against `large_registers`: where the tensor cores add f16 twice as fast as f32, as those of GPUs with GeForce names do,
//   half of the products gain, and what decides the weights keeps its bits. Half of the registers for the answer.
//   Bound: as there.
//   Idea: FFPA (https://github.com/DefTruth/ffpa-attn), its mixed accumulators.
#include "attention/large_tiles.cuh"

namespace warpsmith {
namespace {

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads, 1) flash_attention_large_registers_mixed_kernel(const AttentionArgs a) {
  if constexpr (kMayHave<C::needs>) {
    extern __shared__ __align__(128) uint4 memory[];
    attend_together<T, float, Acc, C>(a, memory);
  }
}

const char* takes(const AttentionArgs& a) { return unmet({takes_large_heads(a), needs_mixed_sums(a)}); }

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_large_tiles(a, [&]<class C>() {
    warpsmith::launch<&flash_attention_large_registers_mixed_kernel<f16, f16, C>>(
        {query_grid(a, C::bm), C::threads, C::bytes}, stream, a);
  });
}

const Register<AttentionArgs> registered{"large_registers_mixed", /*min_sm=*/80, takes, launch, suits_long_heads};

}  // namespace
}  // namespace warpsmith
