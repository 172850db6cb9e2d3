// The second kernel of products whose k is cut into slices.
#pragma once

#include <cuda_runtime.h>

#include "gemm/fused_linear/fused_linear.h"

namespace warpsmith {

// Adds up the partial sums of the workspace, slice by slice, and finishes them: sum_slices.cu.
void sum_slices(const FusedArgs& p, int slices, cudaStream_t stream);

}  // namespace warpsmith
