// Attention for head dimensions past 256, the answer in registers.
//   Against `large_twice`: scores are summed once. The answer's columns are shared out to eight warps, which exchange
//   probabilities through shared memory once for every 128 keys; k and v pass it in slices, in a ring.
//   Occupancy: one block of 8 warps, up to 255 registers a thread, of which the answer takes 80 to 128.
//   Bound: L2, which every 64 queries (32 past 512) read all of k and v from; barriers, one a slice.
//   Idea: FFPA (https://github.com/DefTruth/ffpa-attn), its first level, which has 16 queries a warp.
#include "attention/large_tiles.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 32 * LargeHeads::warps;

template <class T, class Acc, int d>
__global__ void __launch_bounds__(kThreads, 1)
    flash_attention_large_registers_kernel(const AttentionArgs a, const Room room) {
  attend_large<d, T, Acc, Acc>(a, room);
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_large_heads(a, [&]<int d>(const LaunchConfig& config, Room room) {
      warpsmith::launch<&flash_attention_large_registers_kernel<T, Acc, d>>(config, stream, a, room);
    });
  });
}

const Register<AttentionArgs> registered{"large_registers", /*min_sm=*/80, takes_large_heads, launch, suits_long_heads};

}  // namespace
}  // namespace warpsmith
