// The launch that merges the moments of pieces. Several rungs make it, so that merge_pieces.cu compiles it once for all of
// them, and nothing else includes this.
#pragma once

#include "norm/group_statistics.cuh"

namespace warpsmith {

inline constexpr int kMergeThreads = 128;

// A block per group merges its pieces.
__global__ void __launch_bounds__(kMergeThreads)
    group_norm_statistics_kernel(Normaliser* to, const Moments* pieces, int64_t count, float eps) {
  start_early();
  __shared__ Moments partial[kWarp];
  Moments moments{};
  for (int64_t i = threadIdx.x; i < count; i += kMergeThreads) moments = merge(moments, pieces[blockIdx.x * count + i]);
  moments = block_merge(moments, partial);
  if (threadIdx.x == 0) to[blockIdx.x] = normaliser(moments, eps);
}

void merge_pieces(const GroupStatistics& to, const GroupShape& s, const Pieces& pieces, float eps,
                  cudaStream_t stream) {
  const LaunchConfig config{.grid = static_cast<unsigned>(s.rows()), .block = kMergeThreads, .early = true};
  launch<&group_norm_statistics_kernel>(config, stream, to.groups, static_cast<const Moments*>(to.pieces), pieces.count,
                                        eps);
}

}  // namespace warpsmith
