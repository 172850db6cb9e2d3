// Transpose, a square block of threads for a square of the result.
//   Against `col2row2d`: whole sectors are written, and read sectors are found in L1 again. Bound: the number of accesses.
#include "host/registry.h"
#include "transform/transpose/blocks.cuh"

namespace warpsmith {
namespace {

constexpr int kRows = kSide, kCols = kSide;  // of a block

template <class T>
__global__ void __launch_bounds__(kSide* kSide)
    transpose_row2col2d_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  block_row2col<T, 1>(a, place_of(a.batch, grid, kRows, kCols));
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const TileGrid grid(a, kRows, kCols);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_row2col2d_kernel<T>>({static_cast<unsigned>(grid.tiles), dim3(kSide, kSide)}, stream,
                                                      a, grid);
  });
}

const Register<TransposeArgs> registered{"row2col2d", /*min_sm=*/80, takes_tiles, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
