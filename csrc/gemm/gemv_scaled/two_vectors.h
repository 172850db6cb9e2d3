// What `block` and `split_k` launch for two vectors.
#pragma once

#include <cuda_runtime.h>

#include "gemm/gemv_scaled/gemv_scaled.h"

namespace warpsmith {

// `halved`: by half of the threads a block.
void launch_two_vectors(const GemvScaledArgs& a, const SkinnyArgs& args, bool halved, cudaStream_t stream);

}  // namespace warpsmith
