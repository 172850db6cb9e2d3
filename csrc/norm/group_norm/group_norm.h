// Group normalisation: y = activation((x - mean) * rsqrt(variance + eps) * weight + bias), mean and variance over the
// channels of a group and all positions of a sample.
#pragma once

#include "norm/group.h"

namespace warpsmith {

struct GroupNormArgs {
  const void* x;  // [n, c, spatial], or [n, spatial, c] with channels last; dense
  ChannelVector weight, bias;
  void* y;           // as x
  float* workspace;  // statistics between kernels, for the rungs of more than one; see norm/group_statistics.h
  GroupShape shape;
  float eps;
  GroupActivation activation;
  Dtype dtype;  // of x and y

  int64_t row_bytes() const { return shape.row_size() * size_of(dtype); }
};

inline const char* few_groups(const GroupNormArgs& a) {
  return a.shape.rows() <= kMostGroups ? nullptr : "needs fewer than 2^27 groups";
}

inline const char* needs_packed_groups(const GroupNormArgs& a) {
  const char* reason = needs_packed_groups(a.shape, a.x, a.dtype);
  return reason != nullptr ? reason : few_groups(a);
}

inline const char* needs_whole_channels(const GroupNormArgs& a) {
  const char* reason = needs_whole_channels(a.shape, a.x, a.dtype);
  return reason != nullptr ? reason : few_groups(a);
}

inline const char* needs_packed_channels(const GroupNormArgs& a) {
  const char* reason = needs_packed_channels(a.shape, a.x, a.dtype);
  return reason != nullptr ? reason : few_groups(a);
}

}  // namespace warpsmith
