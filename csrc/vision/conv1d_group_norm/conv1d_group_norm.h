// A convolution of signals, group norm of its result h, and an activation:
//   y = activation((h - mean) * rsqrt(variance + eps) * norm_weight + norm_bias)
// mean and variance over the channels of a group and all positions of a sample.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "vision/conv1d_group_norm/conv1d.h"

namespace warpsmith {

enum class Conv1dActivation : int { none, silu, mish };

struct Conv1dGroupNormArgs {
  Conv1dShape shape;
  const void* x;                        // [n, c_in, length]
  const void* weight;                   // [c_out, c_in, taps]
  const void* bias;                     // [c_out], or null
  const void *norm_weight, *norm_bias;  // [c_out]
  void* y;                              // [n, c_out, length]
  void* h;                              // as y; null where nobody wants it, for rungs that need none
  void* workspace;                      // workspace_bytes()
  int64_t groups;
  float eps;
  Conv1dActivation activation;
  Dtype dtype;  // of all tensors
  int sm_count;

  __host__ __device__ int64_t group_channels() const { return shape.c_out / groups; }
  __host__ __device__ int64_t group_size() const { return group_channels() * shape.length; }
};

// Whether the rung leaves h in memory in any case.
inline bool passes_through_memory(std::string_view rung) { return rung != "mma_fused"; }

inline int64_t workspace_bytes(std::string_view rung, const Conv1dGroupNormArgs& a) {
  const Conv1dShape& s = a.shape;
  if (rung == "naive") return 0;
  return signal_bytes(s.positions(), s.c_in, a.dtype) + weight_bytes(s.c_out, s.c_in, s.taps, a.dtype);
}

// y from h, a block per group.
void normalise_groups(const Conv1dGroupNormArgs& a, cudaStream_t stream);

}  // namespace warpsmith
