// Attention on tensor cores with every option, each a branch that all blocks take alike.
//   Against `mma_peak`: soft cap, ALiBi, bias, masks, documents, trees, sinks, gate, dropout and the largest score; tiles of
//   64 x 64 that leave the registers for them. Bound: instructions between mma, the more of them the more options.
#include "attention/flash_attention/launch_forward.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::warps* kWarp, Tile::blocks)
    flash_attention_mma_options_kernel(const AttentionArgs a, const HeadOrder order) {
  extern __shared__ __align__(128) uint4 memory[];
  attend<ForwardConfig<T, Tile, OptionScore, OptionMask, true>>(a, order, memory);
}

template <class T, class Base>
bool launch_if(const AttentionArgs& a, cudaStream_t stream) {
  using Tile = ForwardOptions<Base>;
  if (!holds<Tile>(a)) return false;
  const HeadOrder order = head_order(a, Tile::bm);
  warpsmith::launch<&flash_attention_mma_options_kernel<T, Tile>>(forward_grid<Tile>(order), stream, a, order);
  return true;
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  dispatch_16_bit(a.dtype, [&]<class T>() {
    first_that_launches<Forward64, Forward96, Forward128, Forward192Values128, Forward192, Forward256>(
        [&]<class Base>() { return launch_if<T, Base>(a, stream); });
  });
}

const Register<AttentionArgs> registered{"mma_options", /*min_sm=*/80, needs_forward_tile, launch};

}  // namespace
}  // namespace warpsmith
