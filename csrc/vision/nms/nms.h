// Non-maximum suppression: of boxes in the order of their scores, those that no kept one before them overlaps by more than
// a threshold.
#pragma once

#include <cstdint>

#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/dtype.h"

namespace warpsmith {

struct NmsArgs {
  const float* boxes;      // [n, 4]: x1, y1, x2, y2
  const int64_t* order;    // [n]: boxes, the best first
  const int64_t* classes;  // [n], or null: only boxes of one class suppress each other
  int64_t* keep;           // [n]: what is kept, then -1
  int64_t* count;          // [1]: how many
  void* workspace;         // a byte a box, or a bit for each pair of boxes
  int64_t n;
  float threshold;
};

inline constexpr int kNmsBlock = 64;             // boxes of a word of bits
inline constexpr int64_t kMostMasked = 1 << 17;  // of which the pairs have 2 GiB of bits

inline bool can_mask(int64_t n) { return n <= kMostMasked; }

inline int64_t nms_workspace_bytes(int64_t n) { return can_mask(n) ? n * ceil_div(n, kNmsBlock) * 8 : n; }

}  // namespace warpsmith
