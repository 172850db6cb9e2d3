// Two vectors, four rows of the weights per block.
#include "gemm/gemv_scaled/two_vectors.h"

#include "gemm/skinny_block.cuh"

namespace warpsmith {

void launch_two_vectors(const GemvScaledArgs& a, const SkinnyArgs& args, bool halved, cudaStream_t stream) {
  using Slice = SliceTile<4, 2, 1>;
  dispatch_scaled(a, [&]<class W, class X>() {
    if (halved) return launch_skinny_block<W, X, SkinnyBlockTile<Slice, 128, 4>>(args, stream);
    launch_skinny_block<W, X, SkinnyBlockTile<Slice, 256, 2>>(args, stream);
  });
}

}  // namespace warpsmith
