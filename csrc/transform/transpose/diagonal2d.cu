// Transpose, square blocks that are taken along diagonals.
//   Against `row2col2d`: blocks that run at the same time neither read nor write the same columns of the matrix, which in
//   memory lie a pitch apart and would meet in one channel where channels are not hashed. Bound: as before.
//   Ruetsch & Micikevicius 2009, "Optimizing Matrix Transpose in CUDA",
//   https://www.cs.colostate.edu/~cs675/MatrixTranspose.pdf
#include "host/registry.h"
#include "transform/transpose/blocks.cuh"

namespace warpsmith {
namespace {

// Line after line of tiles, each of which begins a tile further on than the line before.
__device__ __forceinline__ TilePlace diagonal_place(const BatchDims& batch, const TileGrid& grid) {
  TilePlace at = place_of(batch, grid, kSide, kSide);
  const auto across = static_cast<uint32_t>(grid.across.divisor);
  const auto turned = static_cast<uint32_t>((at.col + at.row) / kSide);
  at.col = int64_t{turned - grid.across.small_quotient(turned) * across} * kSide;
  return at;
}

template <class T>
__global__ void __launch_bounds__(kSide* kSide)
    transpose_diagonal2d_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  block_row2col<T, 1>(a, diagonal_place(a.batch, grid));
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const TileGrid grid(a, kSide, kSide);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_diagonal2d_kernel<T>>({static_cast<unsigned>(grid.tiles), dim3(kSide, kSide)}, stream,
                                                       a, grid);
  });
}

const Register<TransposeArgs> registered{"diagonal2d", /*min_sm=*/80, takes_tiles, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
