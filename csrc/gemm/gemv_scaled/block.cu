// GEMV with 8-bit weights, eight rows per block.
//   Against `pack`: all threads of a block share its rows, and what a thread has read of one vector, and widened to f32,
//   serves all eight; with two vectors they are four. Bound: DRAM, with the widening of the weights close behind.
#include "gemm/gemv_scaled/two_vectors.h"
#include "gemm/skinny_block.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int64_t kShortK = 2048;  // half of the threads will do

void launch(const GemvScaledArgs& a, cudaStream_t stream) {
  const SkinnyArgs args = with_slices(a.call, 1);
  const bool halved = args.k <= kShortK;
  if (args.vectors > 1) return launch_two_vectors(a, args, halved, stream);
  using Slice = SliceTile<8, 1, 1>;
  dispatch_scaled(a, [&]<class W, class X>() {
    if (halved) return launch_skinny_block<W, X, SkinnyBlockTile<Slice, 128, 4>>(args, stream);
    launch_skinny_block<W, X, SkinnyBlockTile<Slice, 256, 2>>(args, stream);
  });
}

// What is widened of a single vector costs so little that more blocks, of fewer rows, are faster: `split_k`, or `pack`.
bool suits(const GemvScaledArgs& a) { return a.call.vectors > 1 && a.call.k >= kLeastBlockK; }

const Register<GemvScaledArgs> registered{"block", /*min_sm=*/80, needs_packs, launch, suits};

}  // namespace
}  // namespace warpsmith
