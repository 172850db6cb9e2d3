// Device side of the row-wise normalisations: the scale of a row, and what they all include.
#pragma once

#include "device/add.h"
#include "device/block.h"
#include "device/convert.h"
#include "device/vec.h"
#include "device/warp.h"
#include "row/packed.h"

namespace warpsmith {

// 1 / sqrt(mean + eps) within 2 ulp, as PyTorch computes it.
__device__ __forceinline__ float reciprocal_rms(float sum, float inverse_count, float eps) {
  return rsqrtf(fmaf(sum, inverse_count, eps));
}

}  // namespace warpsmith
