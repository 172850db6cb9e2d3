// Transpose, square blocks, four neighbours of the result to a thread.
//   Against `col2row2d4`: it is stores that take four elements, and loads that are many. Bound: loads, each of a sector of
//   its own that is found in L1 three times out of four.
#include "host/registry.h"
#include "transform/transpose/blocks.cuh"

namespace warpsmith {
namespace {

constexpr int kRows = kX4 * kSide, kCols = kSide;  // of a block

template <class T>
__global__ void __launch_bounds__(kSide* kSide)
    transpose_row2col2d4_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  block_row2col<T, kX4>(a, place_of(a.batch, grid, kRows, kCols));
}

const char* takes(const TransposeArgs& a) { return unmet({needs_rank(a), needs_tiles(a), needs_written_x4(a)}); }

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const TileGrid grid(a, kRows, kCols);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_row2col2d4_kernel<T>>({static_cast<unsigned>(grid.tiles), dim3(kSide, kSide)}, stream,
                                                       a, grid);
  });
}

const Register<TransposeArgs> registered{"row2col2d4", /*min_sm=*/80, takes, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
