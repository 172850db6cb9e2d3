// Transpose, through a tile in shared memory.
//   Against `row2col2d4`: both sides of global memory are walked along lines. Bound: shared memory, whose column of a tile
//   is one bank (of 4 bytes an element) for all of a warp.
#include "host/registry.h"
#include "transform/transpose/staged.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kTileSide* kTileRows)
    transpose_shared_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  __shared__ T tile[kTileSide * kTileSide];
  transpose_tile(a, grid, tile, [](int row, int col) { return row * kTileSide + col; });
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const TileGrid grid(a, kTileSide, kTileSide);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_shared_kernel<T>>({static_cast<unsigned>(grid.tiles), dim3(kTileSide, kTileRows)},
                                                   stream, a, grid);
  });
}

const Register<TransposeArgs> registered{"shared", /*min_sm=*/80, takes_turning, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
