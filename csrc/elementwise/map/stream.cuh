// The kernels of `stream` and `lut`: 128-bit accesses that bypass the caches, and next to no instructions around them.
#pragma once

#include "device/start_early.h"
#include "device/stream_policy.h"
#include "elementwise/map/rows.cuh"
#include "host/min_max.h"

namespace warpsmith {
namespace {

constexpr int64_t kMaxGridY = 65535;

// `Way`, here and below: how a rung computes and in which tiles.
//   Map, T
//   Row      a block of a single row: threads, packs of a thread, min_blocks that its registers must allow
//   Rows     a block of many rows: threads, rows of a thread, min_blocks
//   Compute  of a thread: prepare(parameter), called by all threads of a block while their loads are under way, and
//            (out, in, parameter) for a pack of every operand

template <class Way>
using ViewOf = Rows<typename Way::Map, typename Way::T>;

// The packs of one block; all of them exist where the tile is whole.
template <bool whole, class Way>
__device__ __forceinline__ void stream_tile(const ViewOf<Way>& view, uint64_t policy) {
  using Map = typename Way::Map;
  using T = typename Way::T;
  using Tile = typename Way::Row;
  constexpr int kWidth = kPack<T>;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (Tile::threads * Tile::packs);
  const auto group = [&](int i) { return base + (threadIdx.x + i * Tile::threads); };
  const auto at = [&](int i) { return Position{0, group(i) * kWidth}; };
  Pack<T> in[Tile::packs][Map::inputs];
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    if (whole || group(i) < view.whole_groups) load_packs(in[i], view, at(i), policy);
  }
  typename Way::Compute compute;
  compute.prepare(view.parameter);
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    if (whole || group(i) < view.whole_groups) {
      Pack<T> out[Map::outputs];
      compute(out, in[i], view.parameter);
      store_outputs<Map, kWidth, Cache::streaming>(view, at(i), out);
    } else if (group(i) < view.groups) {
      finish_row(view, at(i));
    }
  }
}

// A single row of any length. The first `whole_tiles` blocks have no tail.
template <class Way>
__global__ void __launch_bounds__(Way::Row::threads, Way::Row::min_blocks)
    map_stream_kernel(const ViewOf<Way> view, const StreamPolicy l2, const unsigned whole_tiles) {
  start_early();
  const uint64_t policy = l2.of_loads();
  if (blockIdx.x < whole_tiles) {
    stream_tile<true, Way>(view, policy);
  } else {
    stream_tile<false, Way>(view, policy);
  }
}

// Many rows: a block covers `rows` * blockDim.y rows by blockDim.x packs. A thread's rows share its columns, hence its
// index arithmetic and the packs of a broadcast row.
template <class Way>
__global__ void __launch_bounds__(Way::Rows::threads, Way::Rows::min_blocks)
    map_stream_rows_kernel(const ViewOf<Way> view, const StreamPolicy l2) {
  using Map = typename Way::Map;
  using T = typename Way::T;
  start_early();
  constexpr int kWidth = kPack<T>, kRows = Way::Rows::rows;
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  const int64_t row_block = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  const int64_t row = row_block * (kRows * blockDim.y) + threadIdx.y;
  const bool there = col < view.cols;
  Pack<T> in[kRows][Map::inputs];

  // load
  if (there) {
    const uint64_t policy = l2.of_loads();
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
  }
  typename Way::Compute compute;
  compute.prepare(view.parameter);
  if (!there) return;

  // compute, write
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    if (row + j * blockDim.y >= view.rows) return;
    Pack<T> out[Map::outputs];
    compute(out, in[j], view.parameter);
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

template <class Way>
void launch_stream(const MapArgs& a, cudaStream_t stream) {
  using Map = typename Way::Map;
  using T = typename Way::T;
  const auto view = make_rows<Map, T>(a, kPack<T>);
  const StreamPolicy l2(a.rows * a.cols * Map::inputs * static_cast<int64_t>(sizeof(T)));
  if (view.rows == 1) {
    using Tile = typename Way::Row;
    constexpr int kStep = Tile::threads * Tile::packs;
    const auto whole_tiles = static_cast<unsigned>(view.whole_groups / kStep);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, kStep)));
    launch<&map_stream_kernel<Way>>({.grid = grid, .block = Tile::threads, .early = true}, stream, view, l2,
                                    whole_tiles);
    return;
  }
  using Tile = typename Way::Rows;
  const int64_t packs = view.cols / kPack<T>;
  const int along = threads_along(packs, Tile::threads);
  const dim3 block(along, Tile::threads / along);
  const int64_t row_blocks = ceil_div(view.rows, Tile::rows * block.y);
  const int64_t along_y = std::min<int64_t>(row_blocks, kMaxGridY);
  const dim3 grid(static_cast<unsigned>(ceil_div(packs, block.x)), static_cast<unsigned>(along_y),
                  static_cast<unsigned>(ceil_div(row_blocks, along_y)));
  launch<&map_stream_rows_kernel<Way>>({.grid = grid, .block = block, .early = true}, stream, view, l2);
}

}  // namespace
}  // namespace warpsmith
