// Elementwise at memory speed: 128-bit accesses that bypass the caches, and next to no instructions around them.
//   Against `pack`: one-time data is kept out of L1, and L2 is told to let the results of a long stream leave first; a single row needs no division at all, and
//   longer layouts find their row once per block instead of once per thread. One access per thread and many short
//   blocks beat several accesses per thread: DRAM likes the narrow front of addresses they sweep. Bound: DRAM.
#include <algorithm>

#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxGridY = 65535;

// Resident blocks that the register budget must allow: one access per thread covers the latency of memory only with the
// multiprocessor full. fp8 computes on 16 values at once and gets the registers for it.
template <class Map, class T>
constexpr int min_blocks() {
  if (kIsFp8<T>) return Map::has_ladder ? 4 : 2;
  return Map::inputs == 1 ? 8 : 6;
}

// A single row of any length.
template <class Map, class T>
__global__ void __launch_bounds__(kThreads, min_blocks<Map, T>()) map_stream_kernel(const Rows<Map, T> view) {
  constexpr int kWidth = kPack<T>;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const Position at{0, group * kWidth};
  if (group >= view.whole_groups) {
    if (group < view.groups) finish_row(view, at);
    return;
  }
  Pack<T> in[Map::inputs], out[Map::outputs];
  load_packs(in, view, at, load_policy(view));
  compute<Map>(out, in, view.parameter);
  store_outputs<Map, kWidth, Cache::streaming>(view, at, out);
}

// Many rows: a block covers kRowsPerThread * blockDim.y rows by blockDim.x packs. A thread's rows share its columns,
// hence its index arithmetic and the packs of a broadcast row.
constexpr int kRowsPerThread = 2;

template <class Map, class T>
__global__ void __launch_bounds__(kThreads, kIsFp8<T> ? 3 : 4) map_stream_rows_kernel(const Rows<Map, T> view) {
  constexpr int kWidth = kPack<T>;
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  const int64_t row_block = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  const int64_t row = row_block * (kRowsPerThread * blockDim.y) + threadIdx.y;
  if (col >= view.cols) return;
  Pack<T> in[kRowsPerThread][Map::inputs];

  // load
  const uint64_t policy = load_policy(view);
#pragma unroll
  for (int k = 0; k < Map::inputs; ++k) {
    const int64_t pitch = view.pitch[Map::outputs + k];
    const T* from = view.data[Map::outputs + k] + row * pitch + col;
    if (pitch == 0) {
      load(in[0][k], from);  // every row reads a broadcast row again: it belongs in the caches
#pragma unroll
      for (int j = 1; j < kRowsPerThread; ++j) in[j][k] = in[0][k];
    } else {
#pragma unroll
      for (int j = 0; j < kRowsPerThread; ++j) {
        if (row + j * blockDim.y < view.rows) load_with_policy(in[j][k], from + j * blockDim.y * pitch, policy);
      }
    }
  }
  // compute, write
#pragma unroll
  for (int j = 0; j < kRowsPerThread; ++j) {
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
      const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, kThreads)));
      warpsmith::launch<&map_stream_kernel<Map, T>>({grid, kThreads}, stream, view);
      return;
    }
    const int64_t packs = view.cols / kPack<T>;
    const dim3 block(threads_along(packs), kThreads / threads_along(packs));
    const int64_t row_blocks = ceil_div(view.rows, kRowsPerThread * block.y);
    const int64_t along_y = std::min<int64_t>(row_blocks, kMaxGridY);
    const dim3 grid(static_cast<unsigned>(ceil_div(packs, block.x)), static_cast<unsigned>(along_y),
                    static_cast<unsigned>(ceil_div(row_blocks, along_y)));
    warpsmith::launch<&map_stream_rows_kernel<Map, T>>({grid, block}, stream, view);
  });
}

const Register<MapArgs> registered{"stream", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
