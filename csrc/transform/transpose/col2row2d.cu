// Transpose, a square block of threads for a square of x.
//   Against `row2col`: reads and writes of a block lie in 16 lines each, which L1 holds. Bound: stores of 32 bytes or
//   less.
#include "host/registry.h"
#include "transform/transpose/blocks.cuh"

namespace warpsmith {
namespace {

constexpr int kRows = kSide, kCols = kSide;  // of a block

template <class T>
__global__ void __launch_bounds__(kSide* kSide)
    transpose_col2row2d_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  block_col2row<T, 1>(a, place_of(a.batch, grid, kRows, kCols));
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const TileGrid grid(a, kRows, kCols);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_col2row2d_kernel<T>>({static_cast<unsigned>(grid.tiles), dim3(kSide, kSide)}, stream,
                                                      a, grid);
  });
}

const Register<TransposeArgs> registered{"col2row2d", /*min_sm=*/80, takes_tiles, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
