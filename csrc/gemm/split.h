// Split-K of products (tile/split.h): the workspace for partial sums, which split.cuh adds up, and the choice of a tile.
#pragma once

#include "gemm/gemm.h"
#include "gemm/waves.h"
#include "host/min_max.h"
#include "tile/split.h"

namespace warpsmith {

// Partial sums for which the workspace has room, for each multiprocessor: as many as its registers accumulate at most.
inline constexpr int64_t kPartialsPerSm = 32 * 1024;
inline constexpr int64_t kMostSplits = 64;
inline constexpr int64_t kLeastDepth = 64;  // values of k that are worth a block

// How many slices of k the workspace has room for; depends on the shape alone, so that every rung shares it.
inline int64_t most_splits(const GemmArgs& p) {
  if (p.batch_invariant) return 1;
  const int64_t room = p.sm_count * kPartialsPerSm / (p.batch * p.m * p.n);
  return std::max<int64_t>(1, min_of(room, p.k / kLeastDepth, kMostSplits));
}

// f32 [splits, batch, m, n], or what waves.h needs.
inline int64_t split_workspace_bytes(const GemmArgs& p) {
  const int64_t splits = most_splits(p);
  if (splits == 1) return waves_workspace_bytes(p);
  const int64_t partial = splits * p.batch * p.m * p.n * static_cast<int64_t>(sizeof(float));
  return std::max(partial, waves_workspace_bytes(p));
}

// The call, as kernels get it that leave sums in the workspace: f32 results of one slice are such sums.
inline GemmArgs with_wide_sums(const GemmArgs& p, int64_t slices) {
  GemmArgs sums = p;
  if (p.wide && slices == 1) sums.workspace = p.d;
  return sums;
}

inline SplitProblem split_problem(const GemmArgs& p) {
  return {.batch = p.batch, .m = p.m, .n = p.n, .k = p.k, .most_splits = most_splits(p), .sm_count = p.sm_count};
}

inline TilePlan plan_tile(const GemmArgs& p, const TileCost& tile) { return plan_tile(split_problem(p), tile); }

template <int n>
int best_tile(const GemmArgs& p, const TileCost (&tiles)[n], Split& split, int first = n) {
  return best_tile(split_problem(p), tiles, split, first);
}

}  // namespace warpsmith
