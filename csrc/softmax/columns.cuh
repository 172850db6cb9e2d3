// Along a dimension that is not the last: geometry, and what is known of a column put together from its parts.
//
// Tensors are [outer, cols, inner] with contiguous inner. A lane owns `width` neighbours of inner, one access wide;
// lanes are numbered through outer and inner, so that short inner dimensions fill warps too. The threads of a block are
// [sharers, lanes]: sharers take turns along cols. A long column is cut into chunks besides, one block each. Sharers and
// chunks depend on cols alone, so a column has the same bits whatever surrounds it.
#pragma once

#include "device/fast_divide.h"
#include "host/ceil_div.h"
#include "host/launch.h"
#include "softmax/chunks.h"
#include "softmax/row.cuh"

namespace warpsmith {

// --- geometry --------------------------------------------------------------------------------------------------------

template <int sharers_, int lanes_>
struct ColumnTile {
  static constexpr int sharers = sharers_, lanes = lanes_, threads = sharers * lanes;
};

inline constexpr int kMostSharers = 16;  // of long columns

// Calls body.template operator()<ColumnTile>() for a column of that length, `wide` where lanes move packs.
template <bool wide, class Body>
void visit_column_tile(int64_t cols, Body&& body) {
  constexpr int64_t kAlone = 16, kFew = 128;
  if (cols <= kAlone) {
    body.template operator()<ColumnTile<1, 256>>();
  } else if (cols <= kFew) {
    body.template operator()<ColumnTile<4, 64>>();
  } else {
    // At least 64 contiguous bytes of inner.
    body.template operator()<ColumnTile<kMostSharers, wide ? 16 : 32>>();
  }
}

// Where a lane works.
struct ColumnPlace {
  int64_t outer, inner;
  bool valid;
};

// The lanes of a whole tensor.
struct ColumnLanes {
  int64_t count;         // outer * ceil(inner / width)
  FastDivide per_outer;  // ceil(inner / width)

  ColumnLanes(int64_t rows, int64_t inner, int width)
      : count(rows / inner * ceil_div(inner, width)), per_outer(static_cast<uint64_t>(ceil_div(inner, width))) {}

  // Stays below 2^31 for whatever fits in memory: blocks with few lanes have long columns.
  template <class Tile>
  unsigned blocks() const {
    return static_cast<unsigned>((count + Tile::lanes - 1) / Tile::lanes);
  }

  template <class Tile, int width>
  __device__ __forceinline__ ColumnPlace place(int64_t block = blockIdx.x) const {
    const int64_t lane = block * Tile::lanes + threadIdx.x % Tile::lanes;
    const int64_t outer = static_cast<int64_t>(per_outer.quotient(static_cast<uint64_t>(lane)));
    const int64_t inner = (lane - outer * static_cast<int64_t>(per_outer.divisor)) * width;
    return {outer, inner, lane < count};
  }
};

// --- parts of a column -----------------------------------------------------------------------------------------------

// What is known of a part of a column, and how parts make a whole.
template <class T>
struct JoinMaxSum {
  using Part = MaxSum;

  template <class Get>
  __device__ __forceinline__ static MaxSum join(int64_t count, Get&& part) {
    float max = kLowest, sum = 0.0f;
    for (int64_t i = 0; i < count; ++i) max = fmaxf(max, part(i).max);
    for (int64_t i = 0; i < count; ++i) sum += part(i).sum * exponential<T>(part(i).max - max);
    return {max, sum};
  }

  __device__ __forceinline__ static MaxSum join_warp(const MaxSum& part) { return warp_merge<T>(part); }
};

struct JoinSum {
  using Part = float;

  template <class Get>
  __device__ __forceinline__ static float join(int64_t count, Get&& part) {
    float sum = 0.0f;
    for (int64_t i = 0; i < count; ++i) sum += part(i);
    return sum;
  }

  __device__ __forceinline__ static float join_warp(float part) { return warp_reduce(part); }
};

template <class Tile, int width, class Part>
struct ColumnStorage {
  Part part[Tile::sharers][width * Tile::lanes];
};

// Joins the parts of the sharers; each of them gets the whole.
template <class Join, class Tile, int width>
__device__ __forceinline__ void join_sharers(typename Join::Part (&own)[width],
                                             ColumnStorage<Tile, width, typename Join::Part>& shared) {
  if constexpr (Tile::sharers > 1) {
    const int lane = threadIdx.x % Tile::lanes, sharer = threadIdx.x / Tile::lanes;
#pragma unroll
    for (int j = 0; j < width; ++j) shared.part[sharer][j * Tile::lanes + lane] = own[j];
    __syncthreads();
    for (int slot = threadIdx.x; slot < width * Tile::lanes; slot += Tile::threads) {
      const auto part = [&](int64_t i) { return shared.part[i][slot]; };
      shared.part[0][slot] = Join::join(Tile::sharers, part);  // nobody else reads this slot before the barrier
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < width; ++j) own[j] = shared.part[0][j * Tile::lanes + lane];
  }
}

// Joins the chunks of each row, a warp per row; the whole takes the place of the first chunk. parts: [chunks, rows].
constexpr int kJoinThreads = 256;

template <class Join>
__global__ void __launch_bounds__(kJoinThreads)
    softmax_join_chunks_kernel(typename Join::Part* parts, int64_t rows, int64_t chunks) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = (int64_t{blockIdx.x} * kJoinThreads + threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int64_t own = lane < chunks ? (chunks - 1 - lane) / kWarp + 1 : 0;
  const auto part = [&](int64_t i) { return parts[(lane + i * kWarp) * rows + row]; };
  const typename Join::Part whole = Join::join_warp(Join::join(own, part));
  if (lane == 0) parts[row] = whole;
}

template <class Join>
void join_chunks(typename Join::Part* parts, int64_t rows, int64_t chunks, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>((rows * kWarp + kJoinThreads - 1) / kJoinThreads);
  launch<&softmax_join_chunks_kernel<Join>>({grid, kJoinThreads}, stream, parts, rows, chunks);
}

}  // namespace warpsmith
