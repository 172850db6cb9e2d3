// Groups of rows of a matrix, or of values of k, each with a matrix of its own: what of products of groups every kernel is
// told.
#pragma once

#include <cstdint>

#include "host/ceil_div.h"

namespace warpsmith {

// Of which kernels that look groups up in shared memory take so many.
inline constexpr int kMostGroups = 512;

struct Groups {
  const int32_t* ends;  // [count], contiguous, on the GPU: where each ends, from the first on; they do not decrease
  int64_t count;
  int64_t total;  // rows, or values of k, that there are; those past the last end belong to no group
};

// Tiles of d that blocks walk, at most: [m, n], or of groups along k each.
template <class Args>
int64_t most_tiles(const Args& p, int64_t rows, int64_t cols) {
  const int64_t down = ceil_div(p.m, rows), across = ceil_div(p.n, cols);
  return p.along_k ? p.groups.count * down * across : (down + p.groups.count) * across;
}

// That a grid counts, and the walk of a block over all groups.
template <class Args>
const char* needs_countable_tiles(const Args& p) {
  constexpr int64_t kTile = 64, kMost = 0x7fffffff;
  return most_tiles(p, kTile, kTile) <= kMost ? nullptr : "needs fewer than 2^31 tiles of 64 x 64";
}

inline const char* needs_few_groups(const Groups& groups) {
  return groups.count <= kMostGroups ? nullptr : "needs at most 512 groups";
}

}  // namespace warpsmith
