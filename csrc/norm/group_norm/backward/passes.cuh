// Group norm backward in passes over memory, either layout: statistics of x, sums of the gradient by channel, from them
// the means over each group, then dx; dw and db from the same sums.
#pragma once

#include "norm/group_norm/backward/sums.cuh"
#include "norm/group_statistics.cuh"

namespace warpsmith {

// The means of all groups, in the workspace behind the statistics.
inline GradSums* means_of(const GroupNormBackwardArgs& a) {
  return reinterpret_cast<GradSums*>(a.workspace + statistics_floats(a.shape, pieces_of(a.shape, a.dtype)));
}

// Fills them, from sums by channel of `parts` parts of each sample; in means.cu.
void launch_means(const GroupNormBackwardArgs& a, const PartialSums& from, int64_t parts, cudaStream_t stream);

}  // namespace warpsmith
