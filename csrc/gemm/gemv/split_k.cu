// GEMV for few long rows: k is cut into slices.
//   Against `block`: the rows alone would leave multiprocessors without a block, so that several share a row, and a second
//   launch adds up what they leave, always in the same order.
//   Occupancy: four blocks of 256 threads x 64 registers; for two vectors two, of up to 114 registers.
//   Bound: the second launch, for which the GPU drains.
#include "gemm/gemv/gemv.h"
#include "gemm/skinny_block.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class Slice, int blocks>
using Tile = SkinnyBlockTile<Slice, 256, blocks>;

void launch(const GemvArgs& a, cudaStream_t stream) {
  const SkinnyArgs args = as_skinny(a, split_k_slices(a));
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.vectors == 1) return launch_skinny_block<T, T, Tile<SliceTile<kSplitRows, 1, 2>, 4>>(args, stream);
    launch_skinny_block<T, T, Tile<SliceTile<kSplitRows, 2, 2>, 2>>(args, stream);
  });
}

// As many rows as this fill the GPUs we know.
bool suits(const GemvArgs& a) {
  return a.vectors <= most_block_vectors(size_of(a.dtype)) && a.m <= 1024 && a.k * size_of(a.dtype) >= 16384;
}

const Register<GemvArgs> registered{"split_k", /*min_sm=*/80, needs_packs_in_f32, launch, suits};

}  // namespace
}  // namespace warpsmith
