// Cumulative sums along one dimension: y[o, j, i] = sum of x[o, k, i] over k <= j, or over k >= j in reverse.
#pragma once

#include <cstdint>

#include "host/ceil_div.h"
#include "host/min_max.h"
#include "reduce/rows_at_once.h"
#include "row/rows.h"

namespace warpsmith {

struct CumsumArgs {
  const void* x;            // [outer, n, inner]
  void* y;                  // [outer, n, inner], contiguous: the dtype of x, int64 for i32
  void* workspace;          // sums of chunks of columns, or status words of tiles of rows; null where neither is needed
  int64_t outer, n, inner;  // rows have inner 1
  int64_t stride_outer, stride_n, stride_inner;  // of x in elements; 0 for a size of 1, else rows and columns have 1
  bool columns;                                  // inner is contiguous; otherwise n is
  bool reverse;
  bool batch_invariant;  // the order in which a sequence's values meet depends on n alone
  Dtype dtype;           // of x

  constexpr int64_t sequences() const { return outer * inner; }
};

// Sums are held in f32, those of integers in int64.
constexpr int sum_size(Dtype dtype) { return dtype == Dtype::i32 ? 8 : 4; }

// --- rows in packs -----------------------------------------------------------------------------------------------------

constexpr int pack_width(Dtype dtype) { return 16 / size_of(dtype); }

// Whether every row of x is as far from a boundary of 16 bytes as its sums are, counted in values. With a promise to
// keep, none may be away from one at all: what meets in a pack would depend on where the row starts.
inline bool lies_alike(const CumsumArgs& a) {
  const int out_size = a.dtype == Dtype::i32 ? 8 : size_of(a.dtype);
  const auto x = reinterpret_cast<uintptr_t>(a.x) / static_cast<uintptr_t>(size_of(a.dtype));
  const auto y = reinterpret_cast<uintptr_t>(a.y) / static_cast<uintptr_t>(out_size);
  const int width = pack_width(a.dtype);
  if (a.batch_invariant && (!is_aligned(a.x, 16) || a.n % width != 0)) return false;
  return (x - y) % static_cast<uintptr_t>(width) == 0 && (a.outer == 1 || (a.stride_outer - a.n) % width == 0);
}

// The most packs that a row touches: it need not start where a pack does, unless there is a promise to keep.
inline int64_t packs_of_row(const CumsumArgs& a) {
  const int width = pack_width(a.dtype);
  const bool starts_whole = a.batch_invariant || (is_aligned(a.x, 16) && a.n % width == 0);
  return ceil_div(a.n + (starts_whole ? 0 : width - 1), width);
}

// --- rows in tiles, by several blocks --------------------------------------------------------------------------------

inline constexpr int kTileThreads = 256;  // of a tile
inline constexpr int kTilePacks = 8;      // of a thread
inline constexpr int kFan = 32;           // sums that one warp looks at: tiles of a group, groups of a set

// Status words: a ticket for all rows, then per row one word per tile, per group of tiles and per set of groups.
struct TilesOfRow {
  int64_t tiles, groups, sets;

  explicit TilesOfRow(const CumsumArgs& a) {
    tiles = ceil_div(packs_of_row(a), int64_t{kTileThreads} * kTilePacks);
    groups = ceil_div(tiles, kFan);
    sets = ceil_div(groups, kFan);
  }
  constexpr int64_t words() const { return tiles + groups + sets; }
};

inline constexpr int64_t kScanManyRows = 1024;       // as many rows keep a GPU busy with a block each
inline constexpr int64_t kTiledRowBytes = 64 << 10;  // from here on a row is worth several blocks

inline bool has_few_long_rows(const CumsumArgs& a) {
  const bool at_once = size_of(a.dtype) == 2 && rows_at_once(a.outer);  // of 32 bits `two_pass` is as fast
  const bool few = a.outer < kScanManyRows && !at_once;
  return (few || a.batch_invariant) && a.n * size_of(a.dtype) >= kTiledRowBytes;
}

// --- columns in chunks -----------------------------------------------------------------------------------------------

struct ColumnChunks {
  int64_t packs;  // of a row of columns
  int64_t chunks, chunk;

  // Enough threads to keep DRAM busy, and chunks long enough that their sums cost little: a short column takes a thread
  // less time than two more launches. With a promise to keep, chunks of one length, whatever the number of columns.
  explicit ColumnChunks(const CumsumArgs& a) {
    constexpr int64_t kThreads = 1 << 16, kShort = 128, kLeastChunk = 32, kMostChunks = 256, kInvariantChunk = 512;
    packs = ceil_div(a.inner, 16 / size_of(a.dtype));
    const int64_t most = a.n <= kShort ? 1 : std::min(ceil_div(a.n, kLeastChunk), kMostChunks);
    const int64_t wanted = a.batch_invariant ? std::min(ceil_div(a.n, kInvariantChunk), kMostChunks)
                                             : clamp<int64_t>(ceil_div(kThreads, a.outer * packs), 1, most);
    chunk = ceil_div(a.n, wanted);
    chunks = ceil_div(a.n, chunk);
  }
};

inline int64_t workspace_bytes(const CumsumArgs& a, bool may_tile) {
  if (!a.columns) {
    return may_tile ? (1 + a.outer * TilesOfRow(a).words()) * static_cast<int64_t>(sizeof(uint64_t)) : 0;
  }
  const int64_t chunks = ColumnChunks(a).chunks;
  return chunks > 1 ? chunks * a.sequences() * sum_size(a.dtype) : 0;
}

// --- what the rungs take ---------------------------------------------------------------------------------------------

// One value at a time and no more than a block to a sequence: beyond this length that would be of no use to anybody.
inline const char* needs_short(const CumsumArgs& a) {
  return a.n <= 1 << 20 ? nullptr : "needs at most 2^20 values along the dimension";
}

inline const char* needs_rows(const CumsumArgs& a) {
  return a.columns ? "needs the dimension to be the last" : nullptr;
}

inline const char* needs_tiles(const CumsumArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  if (a.dtype == Dtype::i32 && a.n > int64_t{1} << 31) return "needs rows of at most 2^31 values";
  return a.outer * TilesOfRow(a).tiles <= kMostRows ? nullptr : "needs at most 2^31 - 1 tiles";
}

inline const char* needs_columns(const CumsumArgs& a) {
  return a.columns ? nullptr : "needs a dimension that is not the last";
}

}  // namespace warpsmith
