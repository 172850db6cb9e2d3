// Elementwise at memory speed: 128-bit accesses that bypass the caches, and next to no instructions around them.
//   Against `pack`: one-time data is kept out of L1, and L2 is told to let the results of a long stream leave first; a
//   single row needs no division at all, and longer layouts find their row once per block instead of once per thread. A
//   thread has all it loads on the way before it computes: the packs of a row, or one of each of its rows. Bound: DRAM.
#include <algorithm>

#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kMaxGridY = 65535;

// Functions of so few instructions that blocks of any size keep memory busy.
template <class Map>
inline constexpr bool kIsLight = false;
template <>
inline constexpr bool kIsLight<Binary<Add>> = true;
template <>
inline constexpr bool kIsLight<Binary<Mul>> = true;
template <>
inline constexpr bool kIsLight<Ternary<MulAdd>> = true;
template <>
inline constexpr bool kIsLight<UnaryBackward<Relu>> = true;
template <>
inline constexpr bool kIsLight<UnaryBackward<Hardshrink>> = true;

// And those of so many that a thread's accesses must hide each other's.
template <class Map>
inline constexpr bool kIsHeavy = false;
template <template <class> class Map>
inline constexpr bool kIsHeavy<Map<Gelu>> = true;

// A single row: threads of a block, packs of a thread, and resident blocks that its registers must allow. Several inputs
// are best swept by larger blocks. fp8 computes on 16 values at once, which
// takes all the registers that a thread may have.
template <class Map, class T>
struct RowTile {
  static constexpr bool kFp8 = kIsFp8<T>, kWide = kIsLight<Map> && !kFp8;
  static constexpr int threads = kWide ? 512 : 256;
  static constexpr int packs = kIsHeavy<Map> && Map::inputs == 1 && !kFp8 ? 2 : 1;
  static constexpr int min_blocks = kFp8                             ? (Map::has_ladder ? 4 : 2)
                                    : kWide                          ? 4
                                    : Map::inputs == 1 && packs == 1 ? 8
                                                                     : 6;
};

// A single row of any length.
template <class Map, class T>
__global__ void __launch_bounds__(RowTile<Map, T>::threads, RowTile<Map, T>::min_blocks)
    map_stream_kernel(const Rows<Map, T> view) {
  constexpr int kWidth = kPack<T>, kThreads = RowTile<Map, T>::threads, kPacks = RowTile<Map, T>::packs;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kPacks) + threadIdx.x;
  const auto at = [&](int i) { return Position{0, (first + i * kThreads) * kWidth}; };
  Pack<T> in[kPacks][Map::inputs];
  const uint64_t policy = load_policy(view);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * kThreads < view.whole_groups) load_packs(in[i], view, at(i), policy);
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t group = first + i * kThreads;
    if (group < view.whole_groups) {
      Pack<T> out[Map::outputs];
      compute<Map>(out, in[i], view.parameter);
      store_outputs<Map, kWidth, Cache::streaming>(view, at(i), out);
    } else if (group < view.groups) {
      finish_row(view, at(i));
    }
  }
}

// Many rows: a block covers kRowsPerThread * blockDim.y rows by blockDim.x packs. A thread's rows share its columns,
// hence its index arithmetic and the packs of a broadcast row.
constexpr int kThreads = 256;
template <class Map, class T>
inline constexpr int kRowsPerThread = kIsFp8<T> || Map::outputs > 1 || (sizeof(T) == 4 && !kIsHeavy<Map>) ? 2 : 4;
template <class Map, class T>
inline constexpr int kMinBlocksOfRows =
    kIsFp8<T> || (sizeof(T) == 4 && kRowsPerThread<Map, T> == 4 && Map::inputs > 2) ? 3 : 4;

template <class Map, class T>
__global__ void __launch_bounds__(kThreads, kMinBlocksOfRows<Map, T>) map_stream_rows_kernel(const Rows<Map, T> view) {
  constexpr int kWidth = kPack<T>, kRows = kRowsPerThread<Map, T>;
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  const int64_t row_block = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  const int64_t row = row_block * (kRows * blockDim.y) + threadIdx.y;
  if (col >= view.cols) return;
  Pack<T> in[kRows][Map::inputs];

  // load
  const uint64_t policy = load_policy(view);
#pragma unroll
  for (int k = 0; k < Map::inputs; ++k) {
    const int64_t pitch = view.pitch[Map::outputs + k];
    const T* from = view.data[Map::outputs + k] + row * pitch + col;
    if (pitch == 0) {
      load(in[0][k], from);  // every row reads a broadcast row again: it belongs in the caches
#pragma unroll
      for (int j = 1; j < kRows; ++j) in[j][k] = in[0][k];
    } else {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (row + j * blockDim.y < view.rows) load_with_policy(in[j][k], from + j * blockDim.y * pitch, policy);
      }
    }
  }
  // compute, write
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    if (row + j * blockDim.y >= view.rows) return;
    Pack<T> out[Map::outputs];
    compute<Map>(out, in[j], view.parameter);
    store_outputs<Map, kWidth, Cache::streaming>(view, {row + j * blockDim.y, col}, out);
  }
}

// The widest power of two up to 256 that wastes less than an eighth of the threads on the last block of a row.
int threads_along(int64_t packs) {
  for (int x = kThreads; x > 1; x /= 2) {
    const int64_t launched = ceil_div(packs, x) * x;
    if ((launched - packs) * 8 < launched) return x;
  }
  return 1;
}

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, AllMaps{}, [&]<class Map, class T>() {
    const auto view = make_rows<Map, T>(a, kPack<T>);
    if (view.rows == 1) {
      using Tile = RowTile<Map, T>;
      const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, Tile::threads * Tile::packs)));
      warpsmith::launch<&map_stream_kernel<Map, T>>({grid, Tile::threads}, stream, view);
      return;
    }
    const int64_t packs = view.cols / kPack<T>;
    const dim3 block(threads_along(packs), kThreads / threads_along(packs));
    const int64_t row_blocks = ceil_div(view.rows, kRowsPerThread<Map, T> * block.y);
    const int64_t along_y = std::min<int64_t>(row_blocks, kMaxGridY);
    const dim3 grid(static_cast<unsigned>(ceil_div(packs, block.x)), static_cast<unsigned>(along_y),
                    static_cast<unsigned>(ceil_div(row_blocks, along_y)));
    warpsmith::launch<&map_stream_rows_kernel<Map, T>>({grid, block}, stream, view);
  });
}

const Register<MapArgs> registered{"stream", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
