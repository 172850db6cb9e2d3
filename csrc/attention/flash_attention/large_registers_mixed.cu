// Attention for head dimensions past 256, scores summed in f32 and p v in f16.
//   Against `large_registers`: where the tensor cores add f16 twice as fast as f32, as those of GPUs with GeForce names do,
//   half of the products gain, and what decides the weights keeps its bits. Half of the registers for the answer.
//   Bound: as there.
//   Idea: FFPA (https://github.com/DefTruth/ffpa-attn), its mixed accumulators.
#include "attention/large_tiles.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 32 * LargeHeads::warps;

template <class T, class Acc, int d>
__global__ void __launch_bounds__(kThreads, 1)
    flash_attention_large_registers_mixed_kernel(const AttentionArgs a, const Room room) {
  attend_large<d, T, float, Acc>(a, room);
}

const char* takes(const AttentionArgs& a) { return unmet({takes_large_heads(a), needs_mixed_sums(a)}); }

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_large_heads(a, [&]<int d>(const LaunchConfig& config, Room room) {
    warpsmith::launch<&flash_attention_large_registers_mixed_kernel<f16, f16, d>>(config, stream, a, room);
  });
}

const Register<AttentionArgs> registered{"large_registers_mixed", /*min_sm=*/80, takes, launch, suits_long_heads};

}  // namespace
}  // namespace warpsmith
