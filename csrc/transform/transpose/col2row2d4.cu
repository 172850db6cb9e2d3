// Transpose, square blocks, four neighbours of x to a thread.
//   Against `row2col2d`: one load brings four elements. Bound: stores, which are as many as before.
#include "host/registry.h"
#include "transform/transpose/blocks.cuh"

namespace warpsmith {
namespace {

constexpr int kRows = kSide, kCols = kX4 * kSide;  // of a block

template <class T>
__global__ void __launch_bounds__(kSide* kSide)
    transpose_col2row2d4_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  block_col2row<T, kX4>(a, place_of(a.batch, grid, kRows, kCols));
}

const char* takes(const TransposeArgs& a) { return unmet({needs_rank(a), needs_tiles(a), needs_read_x4(a)}); }

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const TileGrid grid(a, kRows, kCols);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_col2row2d4_kernel<T>>({static_cast<unsigned>(grid.tiles), dim3(kSide, kSide)}, stream,
                                                       a, grid);
  });
}

const Register<TransposeArgs> registered{"col2row2d4", /*min_sm=*/80, takes, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
