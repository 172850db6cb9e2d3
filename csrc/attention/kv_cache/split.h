// How a call is cut among blocks. A row of work is a head of keys and a tile of the queries that share it; its keys are
// counted in rounds, in each of which every group of warps takes a tile of them. Blocks get equally many rounds, one after
// the other through all rows: a block may finish one row, have others to itself, and begin one that the next block goes on
// with. What is left of rows that several blocks share is put together by the last of them.
//
// How long sequences are is known on the GPU alone, so every block finds its share by itself, in less time than a launch
// would take, and a captured call serves other lengths. A plan says no more than among how many blocks
// (kernels/warpsmith/attention/kv_cache_plan.py, which counts as `Split` does).
#pragma once

#include <cstdint>

#include "attention/kv_cache/kv_cache.h"
#include "host/ceil_div.h"
#include "host/min_max.h"

namespace warpsmith {

// A block's tile.
template <class Cache, int d_, int warps_m_, int warps_n_, int keys_, int stages_, int resident_>
struct SplitTile {
  using Args = KvCacheArgs;                   // of a call
  static constexpr bool masked = false;       // whether a call may have a mask
  using C = Cache;                            // f16 or bf16 like the queries, or e4m3
  static constexpr int d = d_;                // of queries, keys and values; narrower ones are filled up with zeros
  static constexpr int warps_m = warps_m_;    // of a group, which share keys: 16 queries each
  static constexpr int warps_n = warps_n_;    // groups, which have keys of their own
  static constexpr int keys = keys_;          // of a group at a time
  static constexpr int stages = stages_;      // such tiles under way or in use
  static constexpr int resident = resident_;  // blocks of a multiprocessor, where it has the memory
  static constexpr int rows = 16 * warps_m, round = keys * warps_n;
  static constexpr int threads = 32 * warps_m * warps_n;
  static constexpr int stage_bytes = 2 * keys * d * static_cast<int>(sizeof(Cache));
  static constexpr int ring_bytes = stage_bytes * stages * warps_n;
  // Queries stay in registers, unless sums leave no room for them.
  static constexpr int queries_bytes = d > 128 ? 2 * rows * d : 0;
  static constexpr int smem = ring_bytes + queries_bytes;
  static constexpr int pitch = d + 8;  // of the sums of a group in shared memory, f32
  static_assert(keys % 16 == 0 && warps_n * rows * (pitch + 2) * 4 <= smem, "sums take the place of keys");
};

// A row that fewer rounds than these are left of is not shared.
inline constexpr int kLeastRounds = 2;
// Nor where a block's keys would be less than so many times what it leaves of sums, which the last block reads.
inline constexpr int kKeysOfPiece = 4;
// Where a row's result must not depend on others, it is cut after as many rounds, whatever it is cut into.
inline constexpr int kInvariantRounds = 16;
// So many queries that share a head of keys go through two tiles of 16 side by side, one of which finds in L2 what the
// other reads, as long as all caches together have no more bytes than these.
inline constexpr int kFewQueries = 16, kMostPairedQueries = 32;
inline constexpr int64_t kMostPairedBytes = int64_t{160} << 20;
// Counters that a launch may have on loan; see tickets.cuh.
inline constexpr int kTicketsOfLaunch = 1024;

// A call, as it is cut by tiles of `rows` queries and rounds of `round` keys.
struct Split {
  int tiles;  // of queries
  int blocks;
  int least;       // rounds of a block
  int64_t pieces;  // at most, of a call

  // `bytes`: of a value in the cache.
  Split(const KvCacheArgs& a, int rows, int round, int bytes, int smem, int resident) {
    tiles = static_cast<int>(ceil_div(a.rows(), rows));
    const int64_t of_work = int64_t{a.batch} * a.kv_heads * tiles, most = ceil_div(a.pages.capacity(), round);
    const int fit = std::max(1, std::min(resident, (a.block_smem + 1024) / (smem + 1024)));
    const int64_t rounds = of_work * std::max<int64_t>(most, 1);
    // d values of f32 a query, against d of a key and of its value
    const int of_piece = kKeysOfPiece * 4 * std::min(a.rows(), rows);
    least = std::max(kLeastRounds, static_cast<int>(ceil_div(of_piece, 2 * round * bytes)));
    blocks = static_cast<int>(clamp<int64_t>(ceil_div(rounds, least), 1, int64_t{a.sm_count} * fit));
    if (a.blocks > 0) blocks = a.blocks;
    pieces = a.batch_invariant ? of_work * std::max<int64_t>(ceil_div(most, kInvariantRounds), 1) : blocks;
  }
  template <class Tile>
  static Split of(const KvCacheArgs& a) {
    return Split(a, Tile::rows, Tile::round, sizeof(typename Tile::C), Tile::smem, Tile::resident);
  }
};

// A piece of a row: sums of values, and the largest score and the sum of weights of each query. A block leaves two at most.
inline int64_t piece_floats(int rows, int d) { return int64_t{rows} * (d + 2); }

template <class Tile>
int64_t workspace_floats(const KvCacheArgs& a) {
  const Split split = Split::of<Tile>(a);
  return split.pieces * (2 * piece_floats(Tile::rows, Tile::d) + 1);  // and a counter
}

}  // namespace warpsmith
