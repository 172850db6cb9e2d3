// What `block` and `split_k` launch.
#pragma once

#include <cuda_runtime.h>

#include "gemm/gemv/gemv.h"

namespace warpsmith {

// One vector or two, with k in `slices`; `halved`: by half of the threads a block.
void launch_few_vectors(const GemvArgs& a, int slices, bool halved, cudaStream_t stream);

}  // namespace warpsmith
