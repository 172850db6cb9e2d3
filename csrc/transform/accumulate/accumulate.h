// Rows added up by their indices: y[o, index[j]] += alpha source[o, j], or the sums alone. What is no sum keeps its bits:
// the term that replaces a row, and the only one of a row that has no other, is not scaled and not added to anything.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "host/dtype.h"

namespace warpsmith {

struct AccumulateArgs {
  void* y;               // [outer, rows, inner], whose last dimensions are contiguous
  const void* source;    // [outer, count, inner], the same
  const void* index;     // [count]
  const void* keys;      // indices that are sorted; null: they are not
  const int64_t* order;  // where each of these stands in `index`
  int64_t outer, rows, count, inner;
  int64_t y_outer, y_row, source_outer, source_row;  // strides
  float alpha;
  int64_t left_out;    // an index that adds nothing; -1: there is none
  bool adds;           // to what y holds; else y holds zeros, which are not read
  bool replaces;       // what y holds, by the last term alone
  bool from_the_end;   // an index below 0 counts from the end
  bool drops;          // an index below 0 adds nothing
  bool deterministic;  // terms of a row are added up in their order
  bool wide;           // indices have 64 bits
  Dtype dtype;
};

// Of so many indices at most, every block finds those of its row by itself; more are sorted.
inline constexpr int64_t kMostScanned = 2048;

// Of so many terms of 16 bits at most, one atomic each is sooner through than adding in order: where they are sorted for it,
// and where `scan` looks for them, which takes longer the more indices there are.
inline constexpr int64_t kMostNarrowAtomics = int64_t{1} << 22, kFewNarrowAtomics = int64_t{1} << 17,
                         kNarrowAtomicsOfLook = int64_t{1} << 8;

inline bool suits_atomics(const AccumulateArgs& a) {
  const int64_t most =
      a.count <= kMostScanned ? kFewNarrowAtomics + kNarrowAtomicsOfLook * a.count : kMostNarrowAtomics;
  return a.dtype == Dtype::f32 || a.outer * a.count * a.inner <= most;
}

// The indices as int64 into `to`, those that count from the end as the same rows from the start; what is outside of the
// rows stays so.
void count_from_the_start(const AccumulateArgs& a, int64_t* to, cudaStream_t stream);

}  // namespace warpsmith
