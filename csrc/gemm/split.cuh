// The partial sums of split-K, and the second launch.
#pragma once

#include "gemm/epilogue.cuh"
#include "gemm/split.h"
#include "host/launch.h"

namespace warpsmith {

// Where the block that computes slice `slice` of product `batch` leaves its sums: [m, n], contiguous.
__device__ __forceinline__ float* partial_sums(const GemmArgs& p, int64_t slice, int64_t batch) {
  return static_cast<float*>(p.workspace) + (slice * p.batch + batch) * p.m * p.n;
}

inline constexpr int kSumThreads = 128;

// Adds up the partial sums of the workspace, slice by slice, and finishes them. See sum_splits.cuh.
// `T` is that of d and c.
template <class T>
void sum_splits(const GemmArgs& p, int splits, cudaStream_t stream);

}  // namespace warpsmith
