// Attention on tensor cores by mma.sync, causal or in a window: what sm_80 to sm_120 do best without wgmma.
//   Tiles by head dimension and GPU (forward_tile.h). Registers: up to 255 a thread, of which at d 128 answers take 128 and
//   scores 64. Shared memory on sm_90: 80 KB at d 64, 96 KB at 128, 96 KB at 256, two blocks a multiprocessor.
//   Bound: the tensor cores at what mma.sync reaches, less what softmax takes of the issue slots.
#include "attention/compiled_sm.h"
#include "attention/flash_attention/launch_forward.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::warps* kWarp, Tile::blocks)
    flash_attention_mma_peak_kernel(const AttentionArgs a, const HeadOrder order) {
  if constexpr (may_run<Tile>(kCompiledSm)) {
    extern __shared__ __align__(128) uint4 memory[];
    attend<ForwardConfig<T, Tile, PlainScoreOf, RangeMask, false>>(a, order, memory);
  }
}

const char* takes(const AttentionArgs& a) {
  if (const char* reason = needs_forward_tile(a)) return reason;
  return a.has_options || a.max_logits != nullptr ? "needs a call without options beyond a window" : nullptr;
}

template <class T, class Tile>
bool launch_if(const AttentionArgs& a, int sm, cudaStream_t stream) {
  if (!holds<Tile>(a) || !Tile::is_for(sm, a.right < kUnlimited)) return false;
  const HeadOrder order = head_order(a, Tile::bm);
  warpsmith::launch<&flash_attention_mma_peak_kernel<T, Tile>>(forward_grid<Tile>(order), stream, a, order);
  return true;
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  const int sm = device_info(current_device()).sm;
  dispatch_16_bit(a.dtype, [&]<class T>() {
    first_that_launches<Forward64, Forward64Little, Forward96, ForwardLittle<Forward96>, Forward128, Forward128Sm80,
                        Forward128Little, Forward128LittleMasked, Forward192Values128,
                        ForwardLittle<Forward192Values128>, Forward192, ForwardLittle<Forward192>, Forward256,
                        Forward256Sm80>([&]<class Tile>() { return launch_if<T, Tile>(a, sm, stream); });
  });
}

const Register<AttentionArgs> registered{"mma_peak", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
