// A warp's sums from the registers of mma.sync to the product, 16 bytes a store.
//   Lanes hold pairs of neighbours. Each warp puts its sums in order in a patch of shared memory of its own, and then
//   writes whole lines of memory. On the way from there, where a lane has eight neighbours at hand, sums are finished.
#pragma once

#include <algorithm>
#include <type_traits>

#include "device/convert.h"
#include "device/ptx/store_at_once.h"
#include "device/vec.h"
#include "gemm/epilogue.cuh"
#include "gemm/split.cuh"
#include "gemm/tile_origin.cuh"
#include "gemm/warp_mma.cuh"

namespace warpsmith {

// As many rows as are staged at once; eight more columns keep the rows that lanes write at once in different banks.
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

// Stores the warp's sums in `out`: one product's d, or its partial sums.
template <Finish how, int rows, class Out, class T, class Acc, class Tile>
__device__ __forceinline__ void store_staged_as(Out* out, const GemmArgs& p, const WarpSums<T, Acc, Tile>& warp,
                                                void* patches, const Place<Tile>& block, const WarpPlace<Tile>& place) {
  using Patch = StorePatch<Tile, rows>;
  using Staged = std::conditional_t<how == Finish::round, T, float>;
  constexpr int kAcross = Patch::wn / 8, kRowsAtOnce = kWarp / kAcross;
  static_assert(kWarp % kAcross == 0 && rows % kRowsAtOnce == 0, "whole rows");
  // A lane stores some of its rows of a pass together, then the next ones. So many turns ahead it reads what is added to
  // them: more hide more, but registers cannot be indexed in a loop.
  constexpr int kRows = rows / kRowsAtOnce, kTogether = std::min(kRows, 4), kTurns = kRows / kTogether;
  constexpr int kPasses = Patch::wm / rows, kAhead = kTurns == 1 ? std::min(kPasses, 2) : 1;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, lane_row = lane / kAcross, lane_col = lane % kAcross * 8;
  const int64_t row = block.m() + place.m + lane_row, col = block.n() + place.n + lane_col;
  const int count = static_cast<int>(min(p.n - col, int64_t{8}));
  int left = count > 0 ? static_cast<int>(min(p.m - row, int64_t{Patch::wm})) : 0;
  Staged* patch = reinterpret_cast<Staged*>(static_cast<char*>(patches) + threadIdx.x / kWarp * Patch::bytes);
  const bool packs = p.n % 8 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t step = kRowsAtOnce * p.n;
  out += row * p.n + col;
  const auto at = [&](int turn, int i) {
    return ((turn * kTogether + i) * kRowsAtOnce + lane_row) * Patch::stride + lane_col;
  };

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
        store(patch + (line + lane / 4) * Patch::stride + 8 * j + lane % 4 * 2, pair);
      }
    }
    __syncwarp();

#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      Pack<Staged> staged[kTogether][8 / kPack<Staged>];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int j = 0; j < 8 / kPack<Staged>; ++j) load(staged[i][j], patch + at(turn, i) + j * kPack<Staged>);
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
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (left > 0) {
          if (packs) [[likely]] {
#pragma unroll
            for (int j = 0; j < 8 / kPack<Out>; ++j) {
              ptx::store_at_once(reinterpret_cast<uint4*>(out) + j, reinterpret_cast<const uint4&>(values[i][j]));
            }
          } else if constexpr (how == Finish::all) {
            // through the patch, as registers cannot be indexed
            Out* own = reinterpret_cast<Out*>(patch + at(turn, i));
            store(own, values[i][0]);
#pragma unroll 1
            for (int j = 0; j < count; ++j) out[j] = own[j];
          } else {
            // from the patch, where the lanes of a row take turns: what they store at once are neighbours
            const int cols = static_cast<int>(min(p.n - block.n() - place.n, int64_t{Patch::wn}));
            const int lanes = (cols + 7) / 8;
#pragma unroll 1
            for (int j = -7 * (lane_col / 8); j < cols - lane_col; j += lanes) out[j] = patch[at(turn, i) + j];
          }
        }
        left -= kRowsAtOnce;
        out += step;
      }
    }
  }
}

// Stores the warp's sums of the block's tile and its slice of k, blockIdx.y. They pass through `patches`, a StorePatch for
// each warp in shared memory that nobody else uses any longer.
template <int rows = 32, class T, class Acc, class Tile>
__device__ __forceinline__ void store_staged(const GemmArgs& p, const Split& split, const WarpSums<T, Acc, Tile>& warp,
                                             void* patches, const Place<Tile>& block, const WarpPlace<Tile>& place) {
  T* d = static_cast<T*>(p.d) + block.batch() * p.m * p.n;
  switch (finish_of(p, split)) {
    case Finish::round:
      return store_staged_as<Finish::round, rows>(d, p, warp, patches, block, place);
    case Finish::all:
      return store_staged_as<Finish::all, rows>(d, p, warp, patches, block, place);
    case Finish::partial:
      float* partial = partial_sums(p, blockIdx.y, block.batch());
      return store_staged_as<Finish::partial, rows>(partial, p, warp, patches, block, place);
  }
}

}  // namespace warpsmith
