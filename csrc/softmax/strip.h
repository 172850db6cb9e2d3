// How much of its columns a strip keeps in shared memory, and over how many blocks longer columns are spread: by their
// length alone, so that the sums of a column do not depend on what surrounds it.
#pragma once

#include <cstdint>

namespace warpsmith {

inline constexpr int64_t kStripRows = 1024;  // of all inputs together, in a block: 64 KiB of packs of four lanes
inline constexpr int kMostStripCluster = 8;
inline constexpr int64_t kLeastStripRows = 64;  // below, caches hold a column well enough

// Blocks for a column.
inline int strip_cluster(int64_t cols, int inputs) {
  int blocks = 1;
  while (blocks < kMostStripCluster && blocks * kStripRows < cols * inputs) blocks *= 2;
  return blocks;
}

inline bool strip_holds(int64_t cols, int inputs) { return cols * inputs <= kMostStripCluster * kStripRows; }

inline bool suits_strip(int64_t cols) { return cols > kLeastStripRows; }

}  // namespace warpsmith
