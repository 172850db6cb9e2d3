// GEMV with 8-bit weights, four rows per block, k cut into slices where the rows are few and long.
//   Against `block`: for one vector there are twice as many blocks; where several of them share a row, a second launch
//   adds up and scales what they leave, always in the same order. Bound: DRAM, or the second launch, for which the GPU
//   drains.
#include "gemm/gemv_scaled/two_vectors.h"
#include "gemm/skinny_block.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

using Tile = SkinnyBlockTile<SliceTile<4, 1, 1>, 256, 2>;

void launch(const GemvScaledArgs& a, cudaStream_t stream) {
  const SkinnyArgs args = with_slices(a.call, split_k_slices(a));
  if (args.vectors > 1) return launch_two_vectors(a, args, /*halved=*/false, stream);
  dispatch_scaled(a, [&]<class W, class X>() { launch_skinny_block<W, X, Tile>(args, stream); });
}

// With two vectors, more rows than this fill the GPUs we know.
bool suits(const GemvScaledArgs& a) {
  if (a.call.vectors == 1) return a.call.k >= kLeastBlockK && !suits_warps(a);
  return a.call.vectors == 2 && a.call.m <= 1024 && a.call.k >= 16384;
}

const Register<GemvScaledArgs> registered{"split_k", /*min_sm=*/80, needs_packs, launch, suits};

}  // namespace
}  // namespace warpsmith
