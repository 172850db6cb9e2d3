// The second kernel of split-K (sum_splits.cuh), which takes its place while the grid before ends.
#pragma once

#include "gemm/split.cuh"

namespace warpsmith {

template <class T>
void sum_splits_early(const GemmArgs& p, int splits, cudaStream_t stream);

}  // namespace warpsmith
