// Transpose, through a swizzled tile.
//   Against `padded`: exclusive-or with the row's number does without the padding. Bound: as before.
#include "host/registry.h"
#include "transform/transpose/staged.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kTileSide* kTileRows)
    transpose_swizzled_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  __shared__ T tile[kTileSide * kTileSide];
  transpose_tile(a, grid, tile, [](int row, int col) { return row * kTileSide + (col ^ row); });
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const TileGrid grid(a, kTileSide, kTileSide);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_swizzled_kernel<T>>({static_cast<unsigned>(grid.tiles), dim3(kTileSide, kTileRows)},
                                                     stream, a, grid);
  });
}

const Register<TransposeArgs> registered{"swizzled", /*min_sm=*/80, takes_turning, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
