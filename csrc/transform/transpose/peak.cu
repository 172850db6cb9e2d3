// Transpose, whole lines on both sides.
//   Against `tma`: copies in the background bring chunks of 16 bytes to where a column of squares has all banks, so that
//   eight lanes write a line of 128 bytes as eight read one. Rows that begin anywhere, of x or of the result, pass in words,
//   in tiles that begin where each line of the result has a sector (words.cuh). Bound: DRAM.
//   What a transpose gains by fewer instructions: https://github.com/pytorch/pytorch/issues/194310
#include "device/ptx/copy.h"
#include "device/ptx/memory.h"
#include "host/launch.h"
#include "host/registry.h"
#include "transform/transpose/lines.cuh"
#include "transform/transpose/place.cuh"
#include "transform/transpose/words.cuh"

namespace warpsmith {
namespace {

// A tile is `lines` lines of 128 bytes wide, and as many squares high. Squares of bytes are large: a line's worth of them.
// Of the smaller ones two lines' worth, so that 256 bytes follow each other on both sides.
template <class T>
struct PeakTile {
  static constexpr int lines = sizeof(T) == 1 ? 1 : 2;
  static constexpr int across = lines * kLineChunks, down = across;
  static constexpr int threads = across * down;
  static constexpr int rows = down * Square<T>::side, cols = across * Square<T>::side;

  // Lines of the tile's left half lie in front of those of its right one.
  __device__ __forceinline__ static int place(int row, int chunk) {
    return chunk / kLineChunks * rows * kLineChunks + line_place<T>(row, chunk % kLineChunks);
  }
};

template <class T>
__global__ void __launch_bounds__(PeakTile<T>::threads)
    transpose_peak_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  using Tile = PeakTile<T>;
  constexpr int kWidth = Square<T>::side;
  __shared__ uint4 tile[Tile::rows * Tile::across];
  const TilePlace at = place_of(a.batch, grid, Tile::rows, Tile::cols);
  const int tid = static_cast<int>(threadIdx.x);

  // load
  {
    const int line = tid / Tile::across, chunk = tid % Tile::across;
    const T* x = static_cast<const T*>(a.x) + at.matrix.x + (at.row + line) * a.x_row + at.col + chunk * kWidth;
    const bool inside = at.col + chunk * kWidth < a.cols;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int row = line + i * Tile::down;
      ptx::cp_async_if(inside && at.row + row < a.rows, tile + Tile::place(row, chunk),
                       reinterpret_cast<const uint4*>(x + i * Tile::down * a.x_row));
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  // transpose and write
  const int down = tid % Tile::down, across = tid / Tile::down;
  const int64_t row = at.row + down * kWidth, col = at.col + across * kWidth;
  if (row >= a.rows || col >= a.cols) return;
  T* y = static_cast<T*>(a.y) + at.matrix.y + col * a.y_col + row;
  turn_square<T>(
      [&](int i) { return tile[Tile::place(down * kWidth + i, across)]; },
      [&](int j, const uint4& pack) { ptx::store_at_once(reinterpret_cast<uint4*>(y + j * a.y_col), pack); });
}

template <class T>
__global__ void __launch_bounds__(kWordThreads)
    transpose_peak_words_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  __shared__ WordTile<T> tile;
  transpose_words<T>(a, grid, tile);
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  dispatch_size(a.dtype, [&]<class T>() {
    if (has_packs(a)) {
      using Tile = PeakTile<T>;
      const TileGrid grid(a, Tile::rows, Tile::cols);
      warpsmith::launch<&transpose_peak_kernel<T>>({static_cast<unsigned>(grid.tiles), Tile::threads}, stream, a, grid);
    } else {
      const TileGrid grid = word_grid<T>(a);
      warpsmith::launch<&transpose_peak_words_kernel<T>>({static_cast<unsigned>(grid.tiles), kWordThreads}, stream, a,
                                                         grid);
    }
  });
}

const Register<TransposeArgs> registered{"peak", /*min_sm=*/80, takes_turning, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
