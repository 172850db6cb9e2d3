// Group normalisation's view of its operands, forward and backward: samples of channels at positions, the channels cut
// into groups that share a mean and a variance.
#pragma once

#include <cstdint>
#include <numeric>

#include "host/min_max.h"
#include "row/rows.h"

namespace warpsmith {

enum class GroupActivation : int { none, silu, mish };

// A dense tensor as [n, c, spatial], or as [n, spatial, c] with channels last.
struct GroupShape {
  int64_t n, c, spatial, groups;
  bool channels_last;

  int64_t group_channels() const { return c / groups; }
  int64_t rows() const { return n * groups; }                      // groups of all samples
  int64_t row_size() const { return group_channels() * spatial; }  // values of a group
  bool is_few() const { return rows() < 132; }                     // multiprocessors of an H100: some get no group
};

// One value per channel; null for the neutral one.
struct ChannelVector {
  const void* data;  // [c]
  Dtype dtype;       // f32 or that of x
};

// More groups are left to the rungs that loop over them: a grid must be able to count 16 blocks for each.
inline constexpr int64_t kMostGroups = kMostRows / 16;

inline int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Contiguous: 128-bit accesses tile every group.
inline const char* needs_packed_groups(const GroupShape& s, const void* x, Dtype dtype) {
  if (s.channels_last) return "needs contiguous x";
  return s.row_size() % (16 / size_of(dtype)) == 0 && is_aligned(x, 16) ? nullptr : "needs groups aligned to 16 bytes";
}

// Contiguous: they tile every channel, so that a pack has one weight and one bias.
inline const char* needs_whole_channels(const GroupShape& s, const void* x, Dtype dtype) {
  if (s.channels_last) return "needs contiguous x";
  return s.spatial % (16 / size_of(dtype)) == 0 && is_aligned(x, 16) ? nullptr : "needs channels aligned to 16 bytes";
}

// Channels last: packs of channels up to the first boundary that both a pack and a group end on.
inline int64_t unit_packs(const GroupShape& s, Dtype dtype) {
  return s.group_channels() / std::gcd(s.group_channels(), int64_t{16 / size_of(dtype)});
}

inline constexpr int kMostColumns = 256;  // packs of a position that a block takes, a thread for each
inline constexpr int64_t kMostChannels = int64_t{1} << 20;

// Channels last: packs tile the channels, and a block reaches from one such boundary to the next.
inline const char* needs_packed_channels(const GroupShape& s, const void* x, Dtype dtype) {
  if (!s.channels_last) return "needs channels-last x";
  if (s.c > kMostChannels) return "needs at most 2^20 channels";
  if (s.c % (16 / size_of(dtype)) != 0 || !is_aligned(x, 16)) return "needs channels aligned to 16 bytes";
  return unit_packs(s, dtype) <= kMostColumns ? nullptr : "needs a group to end within 256 packs of channels";
}

}  // namespace warpsmith
