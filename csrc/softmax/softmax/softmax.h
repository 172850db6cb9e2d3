// Softmax along one dimension, y = exp(x - max) / sum(exp(x - max)), or the logarithm of it.
#pragma once

#include <cstdint>
#include <string_view>

#include "row/rows.h"
#include "softmax/chunks.h"

namespace warpsmith {

struct SoftmaxArgs {
  const void* x;       // [outer, cols, inner], inner contiguous; rows with contiguous columns where inner is 1
  void* y;             // [outer, cols, inner], contiguous
  void* workspace;     // workspace_words() of 4 bytes, null for none
  int64_t rows;        // outer * inner, the number of softmaxes
  int64_t cols;        // values in each
  int64_t inner;       // 1: along the last dimension
  int64_t x_stride;    // elements from one outer index of x to the next
  int64_t col_stride;  // elements from one column of x to the next
  Dtype dtype;         // of x and y
  bool log;
};

inline const char* needs_rows(const SoftmaxArgs& a) {
  return a.inner == 1 ? nullptr : "works along the last dimension";
}

inline bool tiles(const SoftmaxArgs& a, int width) {
  return tiles_rows(a.x, a.rows, a.cols, a.x_stride, a.dtype, width);
}

inline const char* needs_pairs(const SoftmaxArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  return tiles(a, 2) ? nullptr : "needs rows aligned to 2 elements";
}

inline const char* needs_packs(const SoftmaxArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  return tiles(a, 16 / size_of(a.dtype)) ? nullptr : "needs rows aligned to 16 bytes";
}

// The longest row of `shared`: sm_89 gives a block 99 KiB of shared memory.
inline constexpr int64_t kMostSharedBytes = 98 * 1024 + 512;

// Words of 4 bytes: two for what `columns` knows of a chunk, two for the total of a row in `fence` and `fence_pack`.
inline int64_t workspace_words(const SoftmaxArgs& a, std::string_view rung) {
  if (rung.starts_with("fence")) return 2 * a.rows;
  const int64_t chunks = a.inner > 1 ? chunks_of(a.cols) : 1;
  return chunks > 1 ? 2 * chunks * a.rows : 0;
}

}  // namespace warpsmith
