// Elementwise at memory speed: 128-bit accesses that bypass the caches, and next to no instructions around them.
//   Against `pack`: one-time data is kept out of L1, and L2 is told to let the results of a long stream leave first; a
//   single row needs no division at all, and longer layouts find their row once per block instead of once per thread. A
//   thread has all it loads on the way before it computes: the packs of a row, or one of each of its rows. Little comes
//   before the first load: a block is told its cache policy and whether it is whole, and takes its place while the kernel
//   before ends. Bound: DRAM.
#include <algorithm>

#include "device/start_early.h"
#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kMaxGridY = 65535;

// What the host knows, so that no block need work it out.
struct Given {
  uint64_t policy;       // of the loads, on sm_90
  unsigned whole_tiles;  // the first so many blocks of a single row have no tail
};

template <class Map, class T>
__device__ __forceinline__ uint64_t load_policy(const Rows<Map, T>& view, const Given& given) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  return given.policy;
#else
  return load_policy(view);
#endif
}

// Maps of so many instructions on so few operands that a thread does better with two packs under way.
template <class Map>
inline constexpr bool kTakesTwo = false;
template <>
inline constexpr bool kTakesTwo<Unary<Gelu>> = true;
template <>
inline constexpr bool kTakesTwo<Unary<GeluTanh>> = true;
template <>
inline constexpr bool kTakesTwo<Unary<Mish>> = true;
template <>
inline constexpr bool kTakesTwo<UnaryBackward<Gelu>> = true;

// A single row: threads of a block, packs of a thread, and resident blocks that its registers must allow. One stream of
// floats is best read by small blocks of two packs a thread. fp8 computes on 16 values at once, which takes all the
// registers that a thread may have.
template <class Map, class T>
struct RowTile {
  static constexpr bool kFp8 = kIsFp8<T>, kOneInput = Map::inputs == 1 && !kFp8, kOneOfFloats = kOneInput && kExact<T>;
  static constexpr int threads = kOneOfFloats ? 128 : 256;
  static constexpr int packs = kOneOfFloats || (kTakesTwo<Map> && !kFp8) ? 2 : 1;
  static constexpr int min_blocks = !kFp8 ? 6 : (Map::is_gradient ? 2 : 4);
  static constexpr int step = threads * packs;
};

// The packs of one block; all of them exist where the tile is whole.
template <bool whole, class Map, class T>
__device__ __forceinline__ void stream_tile(const Rows<Map, T>& view, uint64_t policy) {
  using Tile = RowTile<Map, T>;
  constexpr int kWidth = kPack<T>;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * Tile::step;
  const auto group = [&](int i) { return base + (threadIdx.x + i * Tile::threads); };
  const auto at = [&](int i) { return Position{0, group(i) * kWidth}; };
  Pack<T> in[Tile::packs][Map::inputs];
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    if (whole || group(i) < view.whole_groups) load_packs(in[i], view, at(i), policy);
  }
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    if (whole || group(i) < view.whole_groups) {
      Pack<T> out[Map::outputs];
      compute<Map>(out, in[i], view.parameter);
      store_outputs<Map, kWidth, Cache::streaming>(view, at(i), out);
    } else if (group(i) < view.groups) {
      finish_row(view, at(i));
    }
  }
}

// A single row of any length.
template <class Map, class T>
__global__ void __launch_bounds__(RowTile<Map, T>::threads, RowTile<Map, T>::min_blocks)
    map_stream_kernel(const Rows<Map, T> view, const Given given) {
  start_early();
  const uint64_t policy = load_policy(view, given);
  if (blockIdx.x < given.whole_tiles) {
    stream_tile<true>(view, policy);
  } else {
    stream_tile<false>(view, policy);
  }
}

// Functions of so many instructions that a thread's accesses must hide each other's.
template <class Map>
inline constexpr bool kIsHeavy = false;
template <template <class> class Map>
inline constexpr bool kIsHeavy<Map<Gelu>> = true;

// Many rows: a block covers `rows` * blockDim.y rows by blockDim.x packs. A thread's rows share its columns, hence its
// index arithmetic and the packs of a broadcast row. Before sm_89, conversions of fp8 take registers of their own.
template <class Map, class T>
struct RowsTile {
  static constexpr int threads = 256;
  static constexpr int rows = kIsFp8<T> || Map::outputs > 1 || (sizeof(T) == 4 && !kIsHeavy<Map>) ? 2 : 4;
  static constexpr int min_blocks = !kIsFp8<T> ? 4 : (WARPSMITH_HAS_FP8_CVT || Map::outputs == 1 ? 3 : 2);
};
template <>
struct RowsTile<Bias<Gelu>, float> {
  static constexpr int threads = 128, rows = 4, min_blocks = 6;
};
template <>
struct RowsTile<BiasBackward<Gelu>, float> {
  static constexpr int threads = 128, rows = 2, min_blocks = 10;
};

template <class Map, class T>
__global__ void __launch_bounds__(RowsTile<Map, T>::threads, RowsTile<Map, T>::min_blocks)
    map_stream_rows_kernel(const Rows<Map, T> view, const Given given) {
  start_early();
  constexpr int kWidth = kPack<T>, kRows = RowsTile<Map, T>::rows;
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  const int64_t row_block = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  const int64_t row = row_block * (kRows * blockDim.y) + threadIdx.y;
  if (col >= view.cols) return;
  Pack<T> in[kRows][Map::inputs];

  // load
  const uint64_t policy = load_policy(view, given);
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

// The widest power of two up to `threads` that wastes less than an eighth of them on the last block of a row.
int threads_along(int64_t packs, int threads) {
  for (int x = threads; x > 1; x /= 2) {
    const int64_t launched = ceil_div(packs, x) * x;
    if ((launched - packs) * 8 < launched) return x;
  }
  return 1;
}

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() {
    const auto view = make_rows<Map, T>(a, kPack<T>);
    Given given{view.beyond_l2 ? ptx::kEvictLastOnSm90 : ptx::kEvictNormalOnSm90, 0};
    if (view.rows == 1) {
      using Tile = RowTile<Map, T>;
      given.whole_tiles = static_cast<unsigned>(view.whole_groups / Tile::step);
      const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, Tile::step)));
      warpsmith::launch<&map_stream_kernel<Map, T>>({.grid = grid, .block = Tile::threads, .early = true}, stream, view,
                                                    given);
      return;
    }
    using Tile = RowsTile<Map, T>;
    const int64_t packs = view.cols / kPack<T>;
    const int along = threads_along(packs, Tile::threads);
    const dim3 block(along, Tile::threads / along);
    const int64_t row_blocks = ceil_div(view.rows, Tile::rows * block.y);
    const int64_t along_y = std::min<int64_t>(row_blocks, kMaxGridY);
    const dim3 grid(static_cast<unsigned>(ceil_div(packs, block.x)), static_cast<unsigned>(along_y),
                    static_cast<unsigned>(ceil_div(row_blocks, along_y)));
    warpsmith::launch<&map_stream_rows_kernel<Map, T>>({.grid = grid, .block = block, .early = true}, stream, view,
                                                       given);
  });
}

const Register<MapArgs> registered{"stream", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
