// A block's sums on their way out of the registers of mma.sync: in f32 as they lie there, or in rows.
//   With `rows` x `cols` mma tiles a lane, the sums of tile i, j are 4 values of each thread, one thread behind the other.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/flash_attention/backward/row_chunks.cuh"
#include "attention/flash_attention/backward/rows.cuh"
#include "device/convert.h"
#include "device/warp.h"
#include "host/launch.h"
#include "tile/operand_tile.h"
#include "tile/panels.h"
#include "tile/warp_mma.cuh"

namespace warpsmith {

template <int threads, class Sums>
__device__ __forceinline__ void leave_sums(float* to, const Sums& sums) {
  constexpr int kRows = std::extent_v<Sums, 0>, kCols = std::extent_v<Sums, 1>;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const float* value = sums[i][j].value;
      *reinterpret_cast<float4*>(to + ((i * kCols + j) * threads + threadIdx.x) * 4) = {value[0], value[1], value[2],
                                                                                        value[3]};
    }
  }
}

template <int threads, class Sums>
__device__ __forceinline__ void add_left_sums(Sums& sums, const float* from) {
  constexpr int kRows = std::extent_v<Sums, 0>, kCols = std::extent_v<Sums, 1>;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const float4 more = *reinterpret_cast<const float4*>(from + ((i * kCols + j) * threads + threadIdx.x) * 4);
      float* value = sums[i][j].value;
      value[0] += more.x;
      value[1] += more.y;
      value[2] += more.z;
      value[3] += more.w;
    }
  }
}

// Scaled and rounded into a tile of shared memory, from a row and a column on, of which `sharers` have 16 each by turns.
template <class Tile, int sharers, class T, class Sums>
__device__ __forceinline__ void put_sums(T* tile, const Sums& sums, float scale, int row, int col) {
  constexpr int kRows = std::extent_v<Sums, 0>, kCols = std::extent_v<Sums, 1>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < kCols; ++j) {
    const int at = Tile::at(row + lane / 4, col + 16 * sharers * (j / 2) + 8 * (j % 2)) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = sums[i][j].pair(half);
        Vec<T, 2> rounded;
        from_float(rounded, {pair.x * scale, pair.y * scale});
        store(tile + Tile::moved(at, 16 * i + 8 * half, 0), rounded);
      }
    }
  }
}

// How a block left the sums of a tile of lines x width.
template <int lines_, int width_, int warps_down_, int warps_across_>
struct LeftSums {
  static constexpr int lines = lines_, width = width_, warps_down = warps_down_, warps_across = warps_across_;
  static constexpr int threads = 32 * warps_down * warps_across;
  static constexpr int rows = lines / warps_down / 16, cols = width / warps_across / 8;
};

// Where sums of the same tiles were left: `count` times, `part` values apart, with `row` values for each row.
struct LeftParts {
  const float* sums;
  int count;
  int64_t part, row;
};

enum class Gradient { q, k, v };

// Adds up what blocks left of a tile, and writes its rows.
template <class T, class Left, Gradient which>
__global__ void __launch_bounds__(Left::threads)
    flash_attention_backward_finish_kernel(const AttentionBackwardArgs a, const LeftParts left, int tiles) {
  using Tile = OperandTile<Along::k, Left::lines, Left::width, Panels>;
  extern __shared__ __align__(128) uint4 memory[];
  T* const tile = reinterpret_cast<T*>(memory);
  constexpr bool kQuery = which == Gradient::q;
  const int heads = kQuery ? a.of.q_heads : a.of.kv_heads;
  const int block = static_cast<int>(blockIdx.x), number = block % tiles, head = block / tiles % heads;
  const GradientRows s(a, block / tiles / heads);
  const int first = number * Left::lines, rows = (kQuery ? s.m : s.n) - first;
  if (rows <= 0) return;

  // add up
  MmaSum<T, float> sums[Left::rows][Left::cols];
  const int64_t row = kQuery ? head * a.q_rows + s.q_row + first : head * a.k_rows + s.k_row + first;
  const float* from = left.sums + row * left.row;
  for (int i = 0; i < left.count; ++i) add_left_sums<Left::threads>(sums, from + i * left.part);

  // write
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  put_sums<Tile, Left::warps_across>(tile, sums, which == Gradient::v ? 1.0f : a.of.scale,
                                     warp % Left::warps_down * 16 * Left::rows, warp / Left::warps_down * 16);
  __syncthreads();
  const RowChunks<Tile, Left::threads> chunks(which == Gradient::v ? a.of.dv : a.of.d);
  const HeadRows& to = kQuery ? a.dq : (which == Gradient::k ? a.dk : a.dv);
  T* rows_to = kQuery ? s.template query<T>(to, head, first) : s.template key<T>(to, head, first);
  chunks.store(rows_to, to.token, rows, tile);
}

}  // namespace warpsmith
