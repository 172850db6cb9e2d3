// Transpose, through a padded tile.
//   Against `shared`: rows of 33 elements put a column of 4 bytes an element into 32 banks. Bound: the number of accesses,
//   two of global and two of shared memory for each element.
#include "host/registry.h"
#include "transform/transpose/staged.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kTileSide* kTileRows)
    transpose_padded_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  __shared__ T tile[kTileSide * (kTileSide + 1)];
  transpose_tile(a, grid, tile, [](int row, int col) { return row * (kTileSide + 1) + col; });
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const TileGrid grid(a, kTileSide, kTileSide);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_padded_kernel<T>>({static_cast<unsigned>(grid.tiles), dim3(kTileSide, kTileRows)},
                                                   stream, a, grid);
  });
}

const Register<TransposeArgs> registered{"padded", /*min_sm=*/80, takes_turning, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
