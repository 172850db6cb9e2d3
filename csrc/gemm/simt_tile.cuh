// A block's tile of a product on the CUDA cores, and how its sums leave.
#pragma once

#include "gemm/epilogue.cuh"
#include "gemm/gemm.h"

namespace warpsmith {

// A warp's lanes stand 8 x 4, so lane pairs at distance 1 share rows of a, those at distance 2 share columns of b:
// shared memory then answers a 16-byte read of half a warp at once. A thread's rows and columns come in chunks of four,
// neighbouring chunks of neighbouring lanes.
inline constexpr int kLaneRows = 8, kLaneCols = 4, kLaneChunk = 4;
inline constexpr int kRowStep = kLaneRows * kLaneChunk, kColStep = kLaneCols * kLaneChunk;  // from chunk to chunk
__device__ __forceinline__ int lane_row(int lane) { return lane >> 1 & 7; }
__device__ __forceinline__ int lane_col(int lane) { return (lane >> 4) << 1 | (lane & 1); }

// `groups` of warps share the tile, each with its own slice of k.
template <int bm_, int bn_, int warps_m_, int warps_n_, int groups_, int blocks_>
struct SimtTile {
  static constexpr int bm = bm_, bn = bn_, bk = 8, stages = 4;
  static constexpr int warps_n = warps_n_, warps = warps_m_ * warps_n, threads = 32 * warps;  // of a group
  static constexpr int groups = groups_;
  static constexpr int blocks = blocks_;                          // on a multiprocessor
  static constexpr int wm = bm / warps_m_, wn = bn / warps_n;     // of a warp
  static constexpr int tm = wm / kLaneRows, tn = wn / kLaneCols;  // of a thread
};

// Where a warp's sums go.
struct SimtTarget {
  float* data;  // of its first row and column: of d, or of the partial sums of a slice
  int64_t batch, row, col;
  int rows, cols;  // left from there
};

// Shared memory through which a warp's sums leave: a row of each lane at a time. With the flip, lanes that write at once
// meet in no bank.
template <class Tile>
struct SimtPatch {
  static constexpr int stride = Tile::wn + 16, floats = kLaneRows * stride;
  static constexpr int of_group = Tile::warps * floats, of_block = Tile::groups * of_group;
  static __device__ __forceinline__ int at(int row, int col) { return row * stride + (col ^ (row >> 1 & 3)); }
};

// What a lane stores of row `i` of each lane of the warp. Groups take turns at the rows.
template <class Tile>
struct StoredValues {
  static constexpr int passes = ceil_div(kLaneRows, Tile::groups), cols = Tile::wn / 32, count = passes * cols;

  // Calls body(index, row, col, place in the patch) for those within the product, or for those of one pass.
  template <class Body>
  static __device__ __forceinline__ void each(const SimtTarget& to, int group, int i, Body&& body) {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) each_of(pass, to, group, i, body);
  }
  template <class Body>
  static __device__ __forceinline__ void each_of(int pass, const SimtTarget& to, int group, int i, Body&& body) {
    const int from = pass * Tile::groups + group;
    const int row = from * kLaneChunk + i / kLaneChunk * kRowStep + i % kLaneChunk;
    if (from >= kLaneRows || row >= to.rows) return;
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      const int col = 32 * j + static_cast<int>(threadIdx.x) % 32;
      if (col < to.cols) body(pass * cols + j, row, col, SimtPatch<Tile>::at(from, col));
    }
  }
};

// A value of the patch of a warp's first group, with those of all groups.
template <class Tile>
__device__ __forceinline__ float joined(const float* patch, int at) {
  float sum = patch[at];
#pragma unroll
  for (int other = 1; other < Tile::groups; ++other) sum += patch[other * SimtPatch<Tile>::of_group + at];
  return sum;
}

// Stores the sums of a warp, of its group `group`. One at a time through `shared`, which all of the block have left:
// stores of packs would tie neighbouring columns to neighbouring registers, and so to the register banks of b's values.
// `Finished`: whether they are results already.
template <class Tile, class Finished>
__device__ __forceinline__ void store_sums(const GemmArgs& p, const SimtTarget& to, float* shared, int group, int warp,
                                           float (&sums)[Tile::tm][Tile::tn]) {
  using Patch = SimtPatch<Tile>;
  using Stored = StoredValues<Tile>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const patch = shared + warp * Patch::floats;
  float* const mine = shared + group * Patch::of_group + warp * Patch::floats;
  const auto sync = [] {
    if constexpr (Tile::groups == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  };
  const auto put = [&](const float (&row)[Tile::tn]) {
#pragma unroll
    for (int j = 0; j < Tile::tn; ++j) {
      const int col = lane_col(lane) * kLaneChunk + j / kLaneChunk * kColStep + j % kLaneChunk;
      mine[Patch::at(lane_row(lane), col)] = row[j];
    }
    sync();
  };

  if constexpr (Finished::value) {
#pragma unroll
    for (int i = 0; i < Tile::tm; ++i) {
      put(sums[i]);
      Stored::each(to, group, i,
                   [&](int, int row, int col, int at) { to.data[row * p.n + col] = joined<Tile>(patch, at); });
      sync();
    }
    return;
  }

  float addends[Stored::count] = {};
  const auto read_addends = [&](int i) {
    if (p.c.data == nullptr) return;
    Stored::each(to, group, i, [&](int index, int row, int col, int) {
      addends[index] = addend_at<float>(p, to.batch, to.row + row, to.col + col);
    });
  };
  read_addends(0);
  // The code for one row serves all, and since registers cannot be indexed, the rows move up.
#pragma unroll 1
  for (int i = 0; i < Tile::tm; ++i) {
    put(sums[0]);
    float values[Stored::count] = {};
    Stored::each(to, group, i, [&](int index, int, int, int at) { values[index] = joined<Tile>(patch, at); });
    scale_and_add(p, values, addends);
    read_addends(i + 1);  // the last ones are not used
    if (p.activation == Activation::none) {
      Stored::each(to, group, i, [&](int index, int row, int col, int) { to.data[row * p.n + col] = values[index]; });
    } else {
      // The formulas of the activations are long: from the patch again, a pass at a time.
      Stored::each(to, group, i, [&](int index, int, int, int at) { patch[at] = values[index]; });
#pragma unroll 1
      for (int pass = 0; pass < Stored::passes; ++pass) {
        Stored::each_of(pass, to, group, i, [&](int, int row, int col, int at) {
          float value[] = {patch[at]};
          activate<true, 1>(p.activation, value);
          to.data[row * p.n + col] = value[0];
        });
      }
    }
    sync();
#pragma unroll
    for (int next = 1; next < Tile::tm; ++next) {
#pragma unroll
      for (int j = 0; j < Tile::tn; ++j) sums[next - 1][j] = sums[next][j];
    }
  }
}

}  // namespace warpsmith
