// Groups of rows of a matrix, or of values of k, each with a matrix of its own: what of products of groups every kernel is told.
#pragma once

#include <cstdint>

namespace warpsmith {

// Of which kernels that look groups up in shared memory take so many.
inline constexpr int kMostGroups = 512;

struct Groups {
  const int32_t* ends;  // [count], contiguous, on the GPU: where each ends, from the first on; they do not decrease
  int64_t count;
  int64_t total;  // rows, or values of k, that there are; those past the last end belong to no group
};

inline const char* needs_few_groups(const Groups& groups) {
  return groups.count <= kMostGroups ? nullptr : "needs at most 512 groups";
}

}  // namespace warpsmith
