// Gradients of group normalisation. With r = rsqrt(variance + eps), xhat = (x - mean) * r, z = xhat * weight + bias and
// gz = grad * activation'(z), means over the group:
//   dx = r * (gz * weight - mean(gz * weight) - xhat * mean(gz * weight * xhat))
//   dw = sum of gz * xhat        db = sum of gz        over samples and positions
#pragma once

#include <string_view>

#include "norm/group.h"
#include "norm/group_statistics.h"

namespace warpsmith {

struct GroupNormBackwardArgs {
  const void* grad;  // as x
  const void* x;     // [n, c, spatial], or [n, spatial, c] with channels last; dense
  ChannelVector weight, bias;
  void* dx;          // as x
  void* dw;          // [c] in the dtype of weight, null without one
  void* db;          // [c] in the dtype of bias, null without one
  float* workspace;  // workspace_floats()
  GroupShape shape;
  float eps;
  GroupActivation activation;
  Dtype dtype;  // of grad, x and dx

  int64_t row_bytes() const { return shape.row_size() * size_of(dtype); }
};

// Channels whose sums a block keeps in shared memory, and blocks that may share a group.
inline constexpr int64_t kMostResidentChannels = 1024, kMostResidentBlocks = 16;
inline constexpr int64_t kMostHalfBytes = 256 * 1024;  // of a 16-bit group that is better read once than in passes

// Contiguous: how the channels are cut into pieces, in packs.
inline Pieces channel_pieces_of(const GroupShape& s, Dtype dtype) {
  constexpr int64_t kLeastPacks = 512, kMostPacks = 4096;
  const int64_t channels = s.n * s.c, packs = s.spatial / (16 / size_of(dtype));
  return Pieces(channels * packs, channels, kLeastPacks, kMostPacks);
}

// The workspace begins with what the rungs of several passes tell each other: statistics, then two floats per group.
inline int64_t pass_floats(std::string_view rung, const GroupNormBackwardArgs& a) {
  if (rung == "naive") return 2 * a.shape.rows();
  if (!rung.ends_with("split")) return 0;
  return statistics_floats(a.shape, pieces_of(a.shape, a.dtype)) + 2 * a.shape.rows();
}

// Then follow the sums of gz * xhat and of gz, so many of each per sample and channel.
inline int64_t sums_per_channel(std::string_view rung, const GroupNormBackwardArgs& a) {
  if (rung == "shared") return 1;
  if (rung == "cluster" || rung == "stream") return kMostResidentBlocks;
  if (rung == "split") return channel_pieces_of(a.shape, a.dtype).count;
  return rung == "nhwc_split" ? pieces_of(a.shape, a.dtype).count : 0;
}

inline int64_t workspace_floats(std::string_view rung, const GroupNormBackwardArgs& a) {
  return pass_floats(rung, a) + 2 * a.shape.n * a.shape.c * sums_per_channel(rung, a);
}

inline const char* needs_packed_channels(const GroupNormBackwardArgs& a) {
  if (const char* reason = needs_packed_channels(a.shape, a.x, a.dtype)) return reason;
  if (!is_aligned(a.grad, 16)) return "needs channels aligned to 16 bytes";
  return a.shape.rows() <= kMostGroups ? nullptr : "needs fewer than 2^27 groups";
}

inline const char* needs_whole_channels(const GroupNormBackwardArgs& a) {
  const GroupShape& s = a.shape;
  if (const char* reason = needs_whole_channels(s, a.x, a.dtype)) return reason;
  if (!is_aligned(a.grad, 16)) return "needs channels aligned to 16 bytes";
  return s.n * s.c <= kMostGroups ? nullptr : "needs fewer than 2^27 channels in all samples";
}

}  // namespace warpsmith
