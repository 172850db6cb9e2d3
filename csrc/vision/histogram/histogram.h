// Histograms: how many values fall into each bin. Of integers, bin b counts the values b; of f32, those from edge b up to,
// and without, edge b + 1, which the last bin has too. What falls into none is not counted.
#pragma once

#include <cstdint>

#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/dtype.h"

namespace warpsmith {

struct HistogramArgs {
  const void* x;       // [n], of f32, i32 or i8
  const float* edges;  // [bins + 1] in ascending order, for f32; else null
  int64_t* counts;     // [bins], 0 before the kernel
  int64_t n;
  int64_t bins;
  bool is_unsigned;  // i8 is read as 0 to 255
  Dtype dtype;
};

// What the shared memory of a block counts: in `copies` words for each bin, or in half a word for each.
inline constexpr int kCountedBytes = 64 << 10;
inline constexpr int64_t kMostWholeBins = 1 << 14;  // of which a word each fits kCountedBytes
inline constexpr int64_t kMostBins = 1 << 16;

inline const char* needs_few_bins(const HistogramArgs& a) {
  return a.bins <= kMostBins ? nullptr : "needs at most 65536 bins";
}

}  // namespace warpsmith
