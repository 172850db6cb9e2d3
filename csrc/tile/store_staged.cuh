// A warp's sums from the registers of mma.sync to memory, 16 bytes a store.
//   Lanes hold pairs of neighbours. Each warp puts its sums in order in a patch of shared memory of its own, and then
//   writes whole lines of memory. On the way from there, where a lane has eight neighbours at hand, sums are finished.
#pragma once

#include "device/convert.h"
#include "device/ptx/memory.h"
#include "device/vec.h"
#include "host/min_max.h"
#include "tile/place.cuh"
#include "tile/store_row.cuh"
#include "tile/thread_again.cuh"
#include "tile/warp_mma.cuh"

namespace warpsmith {

// As many rows as are staged at once; eight more columns keep the rows that lanes write at once in different
// banks, and are what store_row.cuh reads past a row.
template <class Tile, int rows_ = 32>
struct StorePatch {
  static constexpr int wm = Share<Tile>::wm, wn = Share<Tile>::wn, rows = rows_, stride = wn + 8;
  static_assert(rows % 8 == 0 && wm % rows == 0, "whole passes");
  static constexpr int bytes = rows * stride * static_cast<int>(sizeof(float));
};

// Dynamic shared memory of a block that loads through a ring of Tile::stages, which the patches reuse.
template <class Tile, class Stage>
constexpr int ring_bytes() {
  constexpr int kRing = Tile::stages * static_cast<int>(sizeof(Stage));
  constexpr int kPatches = Share<Tile>::warps * StorePatch<Tile>::bytes;
  return kRing > kPatches ? kRing : kPatches;
}

// What becomes of sums before they are stored. A Finisher has
//   Staged              the type in which sums wait in shared memory
//   kReads              whether it reads something for each of them, in f32 then, and has
//     Rows<step>        eight columns of one row after another, `step` rows apart: Rows(finisher, batch, row, col, left,
//                       count) and read_next(Vec<T, 8>&)
//     add(sums, read)   of eight sums
//     apply<n>(sums)    of all that a lane stores together
// This one leaves them as they are.
template <class Staged_>
struct NoFinisher {
  using Staged = Staged_;
  static constexpr bool kReads = false;
  template <int>
  struct Rows {
    template <class... Place>
    __device__ __forceinline__ explicit Rows(const Place&...) {}
    template <class Values>
    __device__ __forceinline__ void read_next(Values&) {}
  };
};

// The eight columns that a lane stores of a row of a patch; neighbouring lanes share the row.
template <class Patch>
struct LanePlace {
  static constexpr int across = Patch::wn / 8;
  int row, col;

  __device__ __forceinline__ explicit LanePlace(uint32_t thread)
      : row(static_cast<int>(thread % kWarp / across)), col(static_cast<int>(thread % across * 8)) {}
};

// Stores the warp's sums of the block's tile in `out` [p.m, p.n], contiguous. They pass through `patches`, a StorePatch for
// each warp in shared memory. `thread_in_block`: thread_again() where what follows from it would take registers from a main
// loop.
template <int rows, class Product, class Finisher, class Out, class T, class Acc, class Tile>
__device__ __forceinline__ void store_finished(Out* out, const Product& p, const Finisher& finisher,
                                               const WarpSums<T, Acc, Tile>& warp, void* patches,
                                               const Place<Tile>& block,
                                               int thread_in_block = static_cast<int>(threadIdx.x)) {
  using Patch = StorePatch<Tile, rows>;
  using Staged = typename Finisher::Staged;
  constexpr int kAcross = LanePlace<Patch>::across, kRowsAtOnce = kWarp / kAcross;
  static_assert(kWarp % kAcross == 0 && rows % kRowsAtOnce == 0, "whole rows");
  // A lane stores some of its rows of a pass together, then the next ones. So many turns ahead it reads what is added to
  // them: more hide more, but registers cannot be indexed in a loop.
  constexpr int kRows = rows / kRowsAtOnce, kTogether = std::min(kRows, 4), kTurns = kRows / kTogether;
  // Rows between borders take more registers, and what has patches of 8 rows has none to spare.
  constexpr int kShares = rows == 8 ? 1 : kTogether;
  constexpr int kPasses = Patch::wm / rows, kAhead = kTurns == 1 ? std::min(kPasses, 2) : 1;
  const uint32_t thread = thread_in_block;
  const WarpPlace<Tile> place(thread_in_block);
  const LanePlace<Patch> lane(thread);
  const int64_t row = block.m() + place.m + lane.row, col = block.n() + place.n + lane.col;
  const int count = static_cast<int>(min(p.n - col, int64_t{8}));
  int left = count > 0 ? static_cast<int>(min(p.m - row, int64_t{Patch::wm})) : 0;
  Staged* patch = reinterpret_cast<Staged*>(static_cast<char*>(patches) + thread / kWarp * Patch::bytes);
  const bool packs = p.n % 8 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t step = kRowsAtOnce * p.n;
  out += row * p.n + col;

  typename Finisher::template Rows<kRowsAtOnce> rows_read(finisher, block.batch(), row, col, left, count);
  Vec<T, 8> reads[kAhead][kTogether];
  const auto read = [&](Vec<T, 8>(&to)[kTogether]) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) rows_read.read_next(to[i]);
  };
  if constexpr (Finisher::kReads) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) read(reads[i]);
  }

#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    __syncwarp();  // the pass before has been read
#pragma unroll
    for (int line = 0; line < rows; line += 8) {
#pragma unroll
      for (int j = 0; j < warp.wn / 8; ++j) {
        const int from = pass * rows + line;
        const float2 sums = warp.sums[from / 16][j].pair(from / 8 % 2);
        Vec<Staged, 2> pair;
        from_float(pair, {sums.x, sums.y});
        store(patch + (line + thread % kWarp / 4) * Patch::stride + 8 * j + thread % 4 * 2, pair);
      }
    }
    __syncwarp();

#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto row_in_patch = [&](int i) { return (turn * kTogether + i) * kRowsAtOnce; };
      Pack<Staged> staged[kTogether][8 / kPack<Staged>];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const Staged* from = patch + (row_in_patch(i) + lane.row) * Patch::stride + lane.col;
#pragma unroll
        for (int j = 0; j < 8 / kPack<Staged>; ++j) load(staged[i][j], from + j * kPack<Staged>);
      }
      Pack<Out> values[kTogether][8 / kPack<Out>];
      if constexpr (Finisher::kReads) {
        auto& sums = reinterpret_cast<float (&)[kTogether][8]>(staged);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) finisher.add(sums[i], reads[pass % kAhead][i]);
        read(reads[pass % kAhead]);
        finisher.template apply<8 * kTogether>(reinterpret_cast<float*>(staged));
#pragma unroll
        for (int i = 0; i < kTogether; ++i) from_float(values[i][0], sums[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
#pragma unroll
          for (int j = 0; j < 8 / kPack<Out>; ++j) values[i][j] = staged[i][j];
        }
      }
      if (packs) [[likely]] {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (left > 0) {
#pragma unroll
            for (int j = 0; j < 8 / kPack<Out>; ++j) {
              ptx::store_at_once(reinterpret_cast<uint4*>(out) + j, reinterpret_cast<const uint4&>(values[i][j]));
            }
          }
          left -= kRowsAtOnce;
          out += step;
        }
      } else {
        // computed anew, to hold no registers where the rows of results start at borders
        const LanePlace<Patch> again(thread_again());
        const auto row_at = [&](int i) {
          return reinterpret_cast<Out*>(patch + (row_in_patch(i) + again.row) * Patch::stride);
        };
        if constexpr (Finisher::kReads) {
          __syncwarp();  // a finished row takes the place of sums that other lanes have read by now
#pragma unroll
          for (int i = 0; i < kTogether; ++i) store(row_at(i) + again.col, values[i][0]);
          __syncwarp();
        }
        const int64_t warp_cols = max(p.n - block.n() - place.n, int64_t{0});
        const int cols = static_cast<int>(min(warp_cols, int64_t{Patch::wn}));
        const int64_t warp_rows = p.m - block.m() - place.m - pass * rows - again.row;
#pragma unroll
        for (int i = 0; i < kTogether; i += kShares) {
          static_assert(Patch::stride >= Patch::wn + 8, "lanes without a pack of their own read past the row");
          RowShare<Out, kAcross> shares[kShares];
#pragma unroll
          for (int j = 0; j < kShares; ++j) {
            const bool is_there = warp_rows > row_in_patch(i + j);
            shares[j].read(row_at(i + j), out - again.col, is_there ? cols : 0, again.col / 8);
            out += step;
          }
#pragma unroll
          for (int j = 0; j < kShares; ++j) shares[j].write();
        }
      }
    }
  }
}

}  // namespace warpsmith
