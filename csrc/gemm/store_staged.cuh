// A warp's sums from the registers of mma.sync to the product, 16 bytes a store.
//   Lanes hold pairs of neighbours. Each warp puts its sums in order in a patch of shared memory of its own, and then
//   writes whole lines of memory. On the way from there, where a lane has eight neighbours at hand, sums are finished.
#pragma once

#include <algorithm>
#include <type_traits>

#include "device/convert.h"
#include "device/ptx/memory.h"
#include "device/vec.h"
#include "gemm/epilogue.cuh"
#include "gemm/split.cuh"
#include "gemm/tile_origin.cuh"
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

// Where the sums go, and what becomes of them first.
enum class Finish {
  round,   // d = a b
  all,     // alpha, c and the activation
  partial  // f32 to the workspace, for split.cuh to add up
};

// How the call finishes its sums.
__device__ __forceinline__ Finish finish_of(const GemmArgs& p, const Split& split) {
  if (split.count > 1) return Finish::partial;
  const bool alone = p.c.data == nullptr && p.alpha == 1.0f && p.activation == Activation::none;
  return alone ? Finish::round : Finish::all;
}

// What is added to eight columns of one row after another, `step` rows apart, while they are `left`.
template <class T, int step>
class AddendRows {
 public:
  __device__ __forceinline__ AddendRows(const GemmArgs& p, int64_t batch, int64_t row, int64_t col, int left, int count)
      : p_(p), from_(static_cast<const T*>(p.c.data)), left_(left), count_(count) {
    constexpr int64_t kSize = sizeof(T);
    const int64_t starts = reinterpret_cast<int64_t>(p.c.data) | p.c.row * kSize | p.c.batch * kSize;
    packs_ = p.c.col == 1 && p.n % 8 == 0 && starts % 16 == 0;
    from_ += batch * p.c.batch + row * p.c.row + col * p.c.col;
    if (p.c.data == nullptr) left_ = 0;
  }

  __device__ __forceinline__ void read_next(Vec<T, 8>& to) {
    if (left_ > 0) {
      if (packs_) [[likely]] {
        load(to, from_);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i < count_) to[i] = from_[i * p_.c.col];
        }
      }
    }
    left_ -= step;
    from_ += step * p_.c.row;
  }

 private:
  const GemmArgs& p_;
  const T* from_;
  int left_, count_;
  bool packs_;
};

// The eight columns that a lane stores of a row of a patch; neighbouring lanes share the row.
template <class Patch>
struct LanePlace {
  static constexpr int across = Patch::wn / 8;
  int row, col;

  __device__ __forceinline__ explicit LanePlace(uint32_t thread)
      : row(static_cast<int>(thread % kWarp / across)), col(static_cast<int>(thread % across * 8)) {}
};

// Stores the warp's sums in `out`: one product's d, or its partial sums. `thread_in_block`: thread_again() where what
// follows from it would take registers from a main loop.
template <Finish how, int rows, class Out, class T, class Acc, class Tile>
__device__ __forceinline__ void store_staged_as(Out* out, const GemmArgs& p, const WarpSums<T, Acc, Tile>& warp,
                                                void* patches, const Place<Tile>& block,
                                                int thread_in_block = static_cast<int>(threadIdx.x)) {
  using Patch = StorePatch<Tile, rows>;
  using Staged = std::conditional_t<how == Finish::round, T, float>;
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

  AddendRows<T, kRowsAtOnce> addend_rows(p, block.batch(), row, col, left, count);
  Vec<T, 8> addends[kAhead][kTogether];
  const auto read_addends = [&](Vec<T, 8>(&to)[kTogether]) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) addend_rows.read_next(to[i]);
  };
  if constexpr (how == Finish::all) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) read_addends(addends[i]);
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
      if constexpr (how == Finish::all) {
        auto& sums = reinterpret_cast<float (&)[kTogether][8]>(staged);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          float wide[8];
          to_float(wide, addends[pass % kAhead][i]);
          scale_and_add(p, sums[i], wide);
        }
        read_addends(addends[pass % kAhead]);
        activate<false, 8 * kTogether>(p.activation, reinterpret_cast<float*>(staged));
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
        if constexpr (how == Finish::all) {
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

// Stores the warp's sums of the block's tile and its slice of k, blockIdx.y. They pass through `patches`, a StorePatch for
// each warp in shared memory that nobody else uses any longer.
template <int rows = 32, class T, class Acc, class Tile>
__device__ __forceinline__ void store_staged(const GemmArgs& p, const Split& split, const WarpSums<T, Acc, Tile>& warp,
                                             void* patches, const Place<Tile>& block) {
  T* d = static_cast<T*>(p.d) + block.batch() * p.m * p.n;
  switch (finish_of(p, split)) {
    case Finish::round:
      return store_staged_as<Finish::round, rows>(d, p, warp, patches, block);
    case Finish::all:
      return store_staged_as<Finish::all, rows>(d, p, warp, patches, block);
    case Finish::partial:
      float* partial = partial_sums(p, blockIdx.y, block.batch());
      return store_staged_as<Finish::partial, rows>(partial, p, warp, patches, block);
  }
}

}  // namespace warpsmith
