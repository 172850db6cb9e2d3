// Short rows of logits, each held in registers by a few lanes of a warp: one row a group of lanes, or row after row, the
// next on its way while one is seen to.
#pragma once

#include <tuple>

#include "device/start_early.h"
#include "host/ceil_div.h"
#include "host/launch.h"
#include "host/min_max.h"
#include "host/tiles.h"
#include "loss/cross_entropy.cuh"

namespace warpsmith {

// lanes that share a row | 128-bit packs of it that each of them holds | blocks per multiprocessor that the registers
// must allow
template <int lanes_, int packs_, int min_blocks_>
struct RegisterTile {
  static constexpr int threads = 128, lanes = lanes_, packs = packs_, min_blocks = min_blocks_;
  static constexpr int most_packs = lanes * packs, groups = threads / lanes;
};

// What every rung of a list of such tiles takes: rows that the last of them holds.
inline constexpr int kMostRegisterBytes = 4096;

inline const char* needs_register_row(const CrossEntropyInput& in) {
  return unmet({needs_grid_rows(in.rows), needs_row_bytes<kMostRegisterBytes>(in.cols, in.dtype)});
}

// Calls body.template operator()<T, Smooth, Tile>() for the dtype, for whether the sum of the logits is needed, and for the
// first tile of the list that holds the row.
template <class... Tile, class Body>
void visit_held(const CrossEntropyInput& in, std::tuple<Tile...> tiles, Body&& body) {
  constexpr int kLast = max_of(Tile::most_packs...);
  static_assert(kLast * 16 == kMostRegisterBytes, "the refusal names this size");
  visit_smoothing(in, [&]<class T, class Smooth>() {
    with_first_tile(tiles, in.cols / kPack<T>, [&]<class One>() { body.template operator()<T, Smooth, One>(); });
  });
}

template <class T>
__device__ __forceinline__ void load_streaming(Pack<T>& to, const T* from) {
  load<Cache::streaming>(to, from);
}

// A lane's part of a row x [cols]: its packs, which `load` reads, and what it has to see to around them.
template <class T, class Tile>
struct RegisterRow {
  static constexpr int kEdges = (PeeledRow<T>::kEdges + Tile::lanes - 1) / Tile::lanes;
  using Edges = float[kEdges];
  PeeledRow<T> peeled;
  Pack<T> packs[Tile::packs];
  int count;  // of its packs

  template <class Load>
  __device__ __forceinline__ RegisterRow(const T* x, const PeeledRow<T>& peeled, int lane, Load&& load)
      : peeled(peeled) {
    const T* gX = x + peeled.col(lane);  // [Tile::packs, kPack], packs that lie `lanes` apart
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) {
      fill_lowest(packs[i]);
      if (i * Tile::lanes + lane < peeled.packs) load(packs[i], gX + i * Tile::lanes * kPack<T>);
    }
    count = peeled.packs > lane ? (peeled.packs - lane + Tile::lanes - 1) / Tile::lanes : 0;
  }

  __device__ __forceinline__ bool has_edges() const { return peeled.head + peeled.tail > 0; }

  // The column of the lane's edge i, -1 for none.
  __device__ __forceinline__ int edge(int i, int lane) const { return peeled.edge(i * Tile::lanes + lane); }

  // Of the whole row, for every lane. Edges are read only now: held with the packs, they would cost registers in every row.
  template <class Smooth>
  __device__ __forceinline__ RowSums sums(const T* x, int lane, Edges& edges) const {
    RowSums sums = no_sums();
    if (has_edges()) {
#pragma unroll
      for (int i = 0; i < kEdges; ++i) {
        const int col = edge(i, lane);
        if (col < 0) continue;
        edges[i] = to_float(x[col]);
        absorb<Smooth>(sums, edges[i]);
      }
    }
    absorb<Smooth>(sums, packs, count);
    return warp_join<Smooth, Tile::lanes>(sums);
  }
};

// --- row after row ----------------------------------------------------------------------------------------------

// Rows of a group of lanes, at most one for each lane: some where there are many, otherwise so many that groups fill the
// machine evenly, and a few where they cannot.
template <class Tile, int min_blocks = Tile::min_blocks>
int rows_of_group(int64_t rows) {
  constexpr int kFew = 3, kSome = std::min(8, Tile::lanes), kMost = std::min(12, Tile::lanes), kManyWaves = 3;
  const int64_t groups = int64_t{device_info(current_device()).sm_count} * min_blocks * Tile::groups;
  if (rows >= kManyWaves * groups * kSome) return kSome;
  const int64_t waves = std::max<int64_t>(ceil_div(rows, groups * kMost), 1);
  return std::max(static_cast<int>(ceil_div(rows, groups * waves)), kFew);
}

// Rows of which two leave room in a lane's registers for enough warps.
inline bool suits_rows(const CrossEntropyInput& in) {
  return in.dtype != Dtype::f32 || in.cols * 4 <= kMostRegisterBytes / 2;
}

// The rows of a group of lanes; those of a group beyond the last row are none.
template <class T, class Tile>
class GroupRows {
 public:
  const int lane;
  const int64_t first;  // row

  __device__ __forceinline__ GroupRows(const CrossEntropyInput& in, int most)
      : lane(static_cast<int>(threadIdx.x) % Tile::lanes),
        first((int64_t{blockIdx.x} * Tile::groups + threadIdx.x / Tile::lanes) * most),
        in_(in),
        most_(most),
        rows_(static_cast<int>(min(int64_t{most}, in.rows - first))) {}

  // Whether there is a row `first + lane`, which is this lane's to see to beyond its values.
  __device__ __forceinline__ bool has_own() const { return lane < rows_; }

  // Calls body(i, x, held) for row `first + i`, with the row after it on its way.
  template <int unroll, class Load, class Body>
  __device__ __forceinline__ void each(Load&& load, Body&& body) const {
    using Held = RegisterRow<T, Tile>;
    const auto fetch = [&](int i) {
      const T* x = row(i);
      return Held(x, peel(in_, x, i < rows_), lane, load);
    };
    Held now = fetch(0);
#pragma unroll unroll
    for (int i = 0; i < most_; ++i) {
      const Held next = fetch(i + 1);
      body(i, row(i), now);
      now = next;
    }
  }

 private:
  __device__ __forceinline__ const T* row(int i) const { return logits_row<T>(in_, first + i); }  // [cols]

  const CrossEntropyInput& in_;
  const int most_, rows_;
};

template <class Tile>
LaunchConfig grid_of_groups(int64_t rows, int of_group) {
  const int64_t of_block = int64_t{Tile::groups} * of_group;
  return {.grid = dim3(static_cast<unsigned>(ceil_div(rows, of_block))), .block = dim3(Tile::threads), .early = true};
}

}  // namespace warpsmith
