// Reductions along one dimension: y[o, i] = reduction over j of x[o, j, i].
#pragma once

#include <cstdint>

#include "host/ceil_div.h"
#include "host/min_max.h"
#include "reduce/rows_at_once.h"
#include "row/rows.h"

namespace warpsmith {

// Libraries are made of some of them each: `kPart` is declared by a header in parts/, which the build includes before a
// source.
enum class Reduction : int { sum, mean, amax, amin, argmax, argmin, var };

// What a binding has to know of a reduction.
struct ReductionInfo {
  const char* name;
  bool finds_position;  // returns an int64 position instead of a value
  bool takes_nothing;   // has an result for no values at all
  bool takes_integers;  // by the PyTorch reference; no kernel does
};

// In the order of `Reduction`.
inline constexpr ReductionInfo kReductions[] = {
    {"sum", false, true, true},   {"mean", false, true, false},  {"amax", false, false, true},
    {"amin", false, false, true}, {"argmax", true, false, true}, {"argmin", true, false, true},
    {"var", false, true, false},
};
inline constexpr int64_t kMostStateBytes = 20;  // of what a block leaves for another about an output

struct ReduceDimArgs {
  Reduction reduction;
  const void* x;  // [outer, n, inner]
  void* y;        // [outer, inner], contiguous: the dtype of x, or int64 for positions
  void* partial;  // [splits, outer, inner] states where a column is split, [outer, splits] where a row is; else null
  int64_t outer, n, inner;
  int64_t stride_outer, stride_n, stride_inner;  // of x in elements; 0 for a size of 1
  bool columns;                                  // stride_inner is 1; otherwise rows: inner is 1, and so is stride_n
  bool finds_position;                           // the result is a position along n
  bool batch_invariant;                          // the order in which a row's values meet depends on n alone
  int64_t splits;                                // blocks that share the reduced dimension
  int64_t chunk;                                 // values along n for each of them, the last may get fewer
  int sm_count;                                  // multiprocessors
  float divisor;                                 // of the final result
  Dtype dtype;                                   // of x

  constexpr int64_t outputs() const { return outer * inner; }
  constexpr int64_t row_bytes() const { return n * size_of(dtype); }
};

inline int64_t round_up(int64_t a, int64_t step) { return ceil_div(a, step) * step; }

inline constexpr int kReduceThreads = 256;

// Blocks for each of `groups` outputs or packs of them: a wave of `wave` blocks in all, and `many` where whole blocks per
// group would leave a tenth of the wave empty.
constexpr int64_t blocks_per_group(int64_t groups, int64_t wave, int64_t many) {
  const int64_t whole = wave / groups;
  return whole * groups * 10 >= wave * 9 ? whole : ceil_div(many, groups);
}

// --- rows: what the ladder chooses, by the length of a row -----------------------------------------------------------

inline constexpr int64_t kWarpRowBytes = 8 << 10;    // up to here a warp reads a row in a few accesses per lane
inline constexpr int64_t kSplitRowBytes = 64 << 10;  // from here on a row is worth several blocks
inline constexpr int64_t kManyRows = 2048;           // as many rows keep a GPU busy without being split

inline bool splits_rows(const ReduceDimArgs& a) {
  if (a.batch_invariant) return a.row_bytes() > kSplitRowBytes;
  return a.row_bytes() >= kSplitRowBytes && a.outer < kManyRows && !rows_at_once(a.outer);
}

// Without a promise to keep, as many blocks per row as fill the machine once, or a few times where they do not go into
// it; otherwise as many as the row's length asks for, whatever the number of rows.
inline void plan_rows(ReduceDimArgs& a) {
  constexpr int64_t kLeastChunkBytes = 32 << 10;
  const int64_t wave = int64_t{4} * a.sm_count, many = a.outer <= wave ? 2 * wave : 2 * kManyRows;
  const int64_t step = kReduceThreads * 16 / size_of(a.dtype);  // values that a block reads in one access per thread
  const int64_t most = std::max<int64_t>(a.row_bytes() / kLeastChunkBytes, 1);
  const int64_t wanted = a.batch_invariant ? ceil_div(a.row_bytes(), kSplitRowBytes)
                                           : std::min(blocks_per_group(a.outer, wave, many), most);
  a.chunk = round_up(ceil_div(a.n, wanted), step);
  a.splits = ceil_div(a.n, a.chunk);
}

// --- columns ---------------------------------------------------------------------------------------------------------

inline constexpr int kColumnThreads = 32;  // along inner, a pack of columns each, where inner is long enough
inline constexpr int kColumnUnroll = 8;    // values of a column that a thread has on their way at once

// Threads along inner; the rest of the block shares the columns. With a promise to keep, it is the same for any inner.
inline int threads_along_inner(const ReduceDimArgs& a) {
  if (a.batch_invariant) return kColumnThreads;
  const int64_t packs = ceil_div(a.inner, 16 / size_of(a.dtype));
  int threads = 1;
  while (threads < kColumnThreads && threads < packs) threads *= 2;
  return threads;
}

inline int64_t column_blocks(const ReduceDimArgs& a) {
  return a.outer * ceil_div(a.inner, threads_along_inner(a) * (16 / size_of(a.dtype)));
}

inline void plan_columns(ReduceDimArgs& a) {
  constexpr int64_t kInvariantChunk = 512;
  const int64_t wave = int64_t{2} * a.sm_count;
  const int64_t many = wave * (a.reduction == Reduction::var ? 2 : 8);  // its states are large, and slow to join
  const int64_t step = kReduceThreads / threads_along_inner(a) * kColumnUnroll;  // rows that a block reads at once
  const int64_t wanted = a.batch_invariant
                             ? ceil_div(a.n, kInvariantChunk)
                             : std::min(blocks_per_group(column_blocks(a), wave, many), ceil_div(a.n, 2 * step));
  a.chunk = round_up(ceil_div(a.n, wanted), step);
  a.splits = ceil_div(a.n, a.chunk);
}

// --- what the rungs take ---------------------------------------------------------------------------------------------

// A thread adds so many values one after another that f32 loses digits beyond this length.
inline const char* needs_short(const ReduceDimArgs& a) {
  return a.n <= 1 << 22 ? nullptr : "needs at most 2^22 values along the dimension";
}

inline const char* needs_positions(const ReduceDimArgs& a) {
  const bool fit = !a.finds_position || a.n < int64_t{1} << 32;
  return fit ? nullptr : "needs fewer than 2^32 values along the dimension";
}

inline const char* needs_rows(const ReduceDimArgs& a) {
  if (const char* reason = needs_positions(a)) return reason;
  return a.columns ? "needs the reduced dimension at unit stride" : nullptr;
}

inline const char* needs_short_rows(const ReduceDimArgs& a) {
  if (const char* reason = needs_short(a)) return reason;
  return needs_rows(a);
}

inline const char* needs_columns(const ReduceDimArgs& a) {
  if (const char* reason = needs_positions(a)) return reason;
  return a.columns ? nullptr : "needs the kept dimensions at unit stride";
}

}  // namespace warpsmith
