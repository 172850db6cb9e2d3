// What some rungs keep in global memory: those that are called by name, and `naive`, which also serves heads that are too
// long for all others.
#pragma once

#include <string_view>

#include "attention/attention.h"
#include "host/ceil_div.h"

namespace warpsmith {

inline constexpr int kRescaledQueries = 64,
                     kRescaledSlice = 32;  // of `large_rescaled`: of a block, and columns at a time

// Bytes for the rung; 0 where it needs none.
inline int64_t workspace_bytes(const AttentionArgs& a, std::string_view rung) {
  const int64_t rows = int64_t{a.batch} * a.q_heads;
  if (rung == "naive") return rows * a.m * a.n * 4;  // scores in f32
  if (!rung.starts_with("large_rescaled")) return 0;
  const int64_t queries = ceil_div(a.m, kRescaledQueries) * kRescaledQueries;
  return rows * queries * ceil_div(a.dv, kRescaledSlice) * kRescaledSlice * size_of(a.accumulator);
}

}  // namespace warpsmith
