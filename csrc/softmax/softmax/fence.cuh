// Several blocks to a row, joined by a fence: the total in global memory, and who finds it complete.
#pragma once

#include "softmax/softmax/result.cuh"

namespace warpsmith {

// Of one row, zero before the first block adds to it. The workspace holds one per row.
struct RowTotal {
  float sum;
  unsigned tickets;  // blocks whose share is in `sum`
};

inline RowTotal* clear_totals(const SoftmaxArgs& a, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(a.workspace, 0, static_cast<size_t>(a.rows) * sizeof(RowTotal), stream), "row totals");
  return static_cast<RowTotal*>(a.workspace);
}

// Adds the share of this block. True, in all its threads, for the block that came last of `blocks`; `sum` then holds the
// whole row's. The caller needs a barrier before it calls again.
__device__ __forceinline__ bool add_to_total(float& sum, RowTotal& total, int64_t blocks) {
  __shared__ float whole;
  __shared__ bool last;
  if (threadIdx.x == 0) {
    atomicAdd(&total.sum, sum);
    __threadfence();  // the share is visible to whoever sees the ticket
    last = atomicAdd(&total.tickets, 1u) == static_cast<unsigned>(blocks - 1);
    __threadfence();  // and what is read now is not older than the ticket
    if (last) whole = atomicAdd(&total.sum, 0.0f);
  }
  __syncthreads();
  if (last) sum = whole;
  return last;
}

}  // namespace warpsmith
