// Which products have their last wave cut (tile/waves.h), and the workspace for its partial sums.
#pragma once

#include "gemm/gemm.h"
#include "host/min_max.h"
#include "tile/waves.h"

namespace warpsmith {

inline int64_t pair_tiles(const GemmArgs& p) { return ceil_div(p.m, kPairTile) * ceil_div(p.n, kPairTile); }

inline int clusters_of(const GemmArgs& p) { return std::max(1, p.sm_count / 2); }

// Whether a rung that cuts the last wave might serve the call.
inline bool may_cut_waves(const GemmArgs& p) {
  return !p.batch_invariant && p.sm >= 90 && p.batch == 1 && p.dtype != Dtype::f32 && p.accumulator == Dtype::f32 &&
         p.a.order == Order::rows && max_of(p.m, p.n, p.k) <= 0x7fffffff;
}

// f32 [slice of a tile, kPairTile, kPairTile].
inline int64_t waves_workspace_bytes(const GemmArgs& p) {
  if (!may_cut_waves(p)) return 0;
  const Waves waves = waves_of(pair_tiles(p), p.k, clusters_of(p));
  return int64_t{waves.items - waves.whole} * kPairTile * kPairTile * static_cast<int64_t>(sizeof(float));
}

}  // namespace warpsmith
