// Transpose, in registers alone.
//   Against `swizzled`: a thread transposes a square of 16 bytes a side, so that every access, of reads and of writes, is of
//   16 bytes, and nothing passes through shared memory. Eight threads read a line, four write half of one. Bound: DRAM,
//   and writes of half lines, which L2 has to join.
#include "device/ptx/memory.h"
#include "host/launch.h"
#include "host/registry.h"
#include "transform/transpose/place.cuh"
#include "transform/transpose/square.cuh"

namespace warpsmith {
namespace {

constexpr int kAcross = 8, kDown = 16;  // squares of a block's tile

template <class T>
__global__ void __launch_bounds__(kAcross* kDown)
    transpose_registers_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ TileGrid grid) {
  constexpr int kWidth = Square<T>::side;
  const TilePlace at = place_of(a.batch, grid, kDown * kWidth, kAcross * kWidth);
  const int64_t row = at.row + static_cast<int>(threadIdx.x) / kAcross * kWidth;
  const int64_t col = at.col + static_cast<int>(threadIdx.x) % kAcross * kWidth;
  if (row >= a.rows || col >= a.cols) return;
  const T* x = static_cast<const T*>(a.x) + at.matrix.x + row * a.x_row + col;
  T* y = static_cast<T*>(a.y) + at.matrix.y + col * a.y_col + row;

  uint4 rows[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) rows[i] = ptx::load_streaming(reinterpret_cast<const uint4*>(x + i * a.x_row));
  turn_square<T>(
      [&](int i) { return rows[i]; },
      [&](int j, const uint4& pack) { ptx::store_at_once(reinterpret_cast<uint4*>(y + j * a.y_col), pack); });
}

const char* takes(const TransposeArgs& a) {
  return unmet({needs_rank(a), needs_turning(a), needs_tiles(a), needs_packs(a)});
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  dispatch_size(a.dtype, [&]<class T>() {
    const TileGrid grid(a, kDown * Square<T>::side, kAcross * Square<T>::side);
    warpsmith::launch<&transpose_registers_kernel<T>>({static_cast<unsigned>(grid.tiles), kAcross * kDown}, stream, a,
                                                      grid);
  });
}

const Register<TransposeArgs> registered{"registers", /*min_sm=*/80, takes, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
