// Transpose, tiles that the copy engine brings.
//   Against `registers`: one thread asks for a tile of 128 x 128 bytes, and no register waits for it. Its lines arrive
//   swizzled; threads turn squares over on the way from shared memory to the result. Bound: DRAM, and writes of half lines:
//   the engine's swizzle keeps the chunks of one line apart, not those of a column of squares, so eight lanes read along
//   a line.
#include "device/ptx/barrier.h"
#include "device/ptx/memory.h"
#include "device/ptx/tma.h"
#include "device/swizzle.h"
#include "host/launch.h"
#include "host/registry.h"
#include "host/tensor_map.h"
#include "transform/transpose/place.cuh"
#include "transform/transpose/square.cuh"

namespace warpsmith {
namespace {

constexpr int kSquares = 8;  // of a tile's side
constexpr int kThreads = kSquares * kSquares;
constexpr int kLine = 128;  // bytes

template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_tma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap map,
                         [[maybe_unused]] const __grid_constant__ TransposeArgs a,
                         [[maybe_unused]] const __grid_constant__ TileGrid grid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kWidth = Square<T>::side, kSide = kSquares * kWidth;
  __shared__ alignas(1024) uint4 tile[kSide * kSquares];  // [kSide, kLine]
  __shared__ alignas(8) uint64_t landed;
  const int tid = static_cast<int>(threadIdx.x);
  const uint32_t matrix = grid.down.small_quotient(grid.across.small_quotient(blockIdx.x));
  const TilePlace at = place_of(a.batch, grid, kSide, kSide);

  // load
  if (tid == 0) {
    ptx::mbarrier_init(&landed, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(&landed, kSide * kLine);
    ptx::tensor_load(tile, &map, {static_cast<int>(matrix), static_cast<int>(at.row), static_cast<int>(at.col)},
                     &landed);
  }
  __syncthreads();
  ptx::mbarrier_wait(&landed, 0);

  // transpose and write
  const int down = tid / kSquares, across = tid % kSquares;
  const int64_t row = at.row + down * kWidth, col = at.col + across * kWidth;
  if (row >= a.rows || col >= a.cols) return;
  T* y = static_cast<T*>(a.y) + at.matrix.y + col * a.y_col + row;
  turn_square<T>(
      [&](int i) {
        const int line = down * kWidth + i;
        return tile[line * kSquares + (across ^ (line % kSquares))];
      },
      [&](int j, const uint4& pack) { ptx::store_at_once(reinterpret_cast<uint4*>(y + j * a.y_col), pack); });
#endif
}

MappedTensor mapped(const TransposeArgs& a) {
  constexpr CUtensorMapDataType kTypes[] = {CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                            CU_TENSOR_MAP_DATA_TYPE_UINT16, CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                            CU_TENSOR_MAP_DATA_TYPE_UINT32};
  const int size = size_of(a.dtype);
  return {.data = a.x,
          .type = kTypes[size],
          .rank = 3,
          .sizes = {a.count, a.rows, a.cols},
          .strides = {a.batch.rank > 0 ? a.batch.x[0] : 0, a.x_row},
          .box = {1, kLine / size, kLine / size}};
}

const char* takes(const TransposeArgs& a) {
  if (const char* reason = unmet({needs_rank(a), needs_turning(a), needs_tiles(a), needs_packs(a)})) return reason;
  if (a.batch_rank > 1 || !can_map(mapped(a), size_of(a.dtype))) {
    return "needs a batch along one dimension, and strides that a tensor map can have";
  }
  return nullptr;
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  dispatch_size(a.dtype, [&]<class T>() {
    constexpr int kSide = kSquares * Square<T>::side;
    const TileGrid grid(a, kSide, kSide);
    warpsmith::launch<&transpose_tma_kernel<T>>({static_cast<unsigned>(grid.tiles), kThreads}, stream,
                                                tensor_map(mapped(a)), a, grid);
  });
}

const Register<TransposeArgs> registered{"tma", /*min_sm=*/90, takes, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
