// Channels last: a block takes a tile of the channels, whole groups of them, and a thread one column of it, a pack of
// channels, down which it walks position by position. Groups of any number of channels may share a pack.
#pragma once

#include "norm/group.cuh"

namespace warpsmith {

inline constexpr int kTileThreads = kMostColumns;  // of a block, at most

// How tiles divide the channels.
struct ColumnTiling {
  int64_t c, spatial;
  int groups, group_channels;
  int packs;    // of a position
  int columns;  // packs of a tile; the last may have fewer
  int tiles;

  // Tiles of at most `most` columns, unless a single run of whole groups and packs is longer.
  ColumnTiling(const GroupShape& s, Dtype dtype, int64_t most)
      : c(s.c),
        spatial(s.spatial),
        groups(static_cast<int>(s.groups)),
        group_channels(static_cast<int>(s.group_channels())),
        packs(static_cast<int>(s.c / (16 / size_of(dtype)))) {
    const int64_t unit = unit_packs(s, dtype), units = packs / unit;
    const int64_t wanted = ceil_of(units, std::clamp<int64_t>(most / unit, 1, units));
    columns = static_cast<int>(ceil_of(units, wanted) * unit);
    tiles = static_cast<int>(ceil_of(packs, columns));
  }

  unsigned threads() const {
    const int lanes = std::max(kTileThreads / columns, 1);
    return static_cast<unsigned>(ceil_of(int64_t{lanes} * columns, kWarp) * kWarp);
  }
};

// A thread's place in a block: a column, and a lane, one of the positions that the block covers at a time.
struct Column {
  int columns, lanes;
  int lane, at;
  bool active;

  __device__ Column(const ColumnTiling& t, int tile)
      : columns(min(t.columns, t.packs - tile * t.columns)),
        lanes(blockDim.x / columns),
        lane(threadIdx.x / columns),
        at(threadIdx.x - lane * columns),
        active(lane < lanes) {}

  // Of `positions` positions those that fall to a lane.
  __device__ int share(int positions, int of_lane) const {
    return of_lane < positions ? (positions - of_lane - 1) / lanes + 1 : 0;
  }
};

// The moments of each channel of a thread's pack.
template <int width>
struct PackMoments {
  float mean[width] = {}, m2[width] = {};
  float count = 0.0f;

  __device__ __forceinline__ void add(const float (&values)[width]) {
    count += 1.0f;
    const float share = ptx::reciprocal_approx(count);
#pragma unroll
    for (int i = 0; i < width; ++i) add_value(mean[i], m2[i], values[i], share);
  }
};

// Shared memory in which the lanes of a block meet: {mean, m2} per lane and channel.
template <int width>
struct LaneMoments {
  float2 of[kTileThreads * width];  // [lanes, columns * width]
};

// Joins the moments of all lanes and channels of each group of the tile, always in the same order; a whole warp calls
// body(group of the tile, moments). `positions` is what the block has walked.
template <int width, class Body>
__device__ __forceinline__ void merge_groups(const PackMoments<width>& mine, LaneMoments<width>& shared,
                                             const Column& column, int positions, int group_channels, Body&& body) {
  const int channels = column.columns * width;
  if (column.active) {
    float2* to = &shared.of[column.lane * channels + column.at * width];
#pragma unroll
    for (int i = 0; i < width; ++i) to[i] = float2{mine.mean[i], mine.m2[i]};
  }
  __syncthreads();
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  for (int group = threadIdx.x / kWarp; group * group_channels < channels; group += warps) {
    Moments moments{};
    for (int i = lane; i < column.lanes * group_channels; i += kWarp) {
      const int of_lane = i / group_channels, channel = i - of_lane * group_channels;
      const float2 part = shared.of[of_lane * channels + group * group_channels + channel];
      moments = merge(moments, {static_cast<float>(column.share(positions, of_lane)), part.x, part.y});
    }
    body(group, warp_merge(moments));
  }
}

// What makes the results of a thread's pack: y = activation((x - mean) * scale + shift), channel by channel.
template <int width>
struct PackFactors {
  float mean[width], scale[width], shift[width];

  template <class T>
  __device__ __forceinline__ void set(int i, const Normaliser& n, int64_t channel, const PerChannel<T>& weight,
                                      const PerChannel<T>& bias) {
    mean[i] = n.mean;
    scale[i] = n.rstd * weight[channel];
    shift[i] = bias[channel];
  }

  template <class Activation, class T>
  __device__ __forceinline__ Pack<T> apply(const Pack<T>& x) const {
    float values[width];
    to_float(values, x);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      values[i] = activate<Activation, T>(fmaf(values[i] - mean[i], scale[i], shift[i]));
    }
    Pack<T> y;
    from_float(y, values);
    return y;
  }
};

}  // namespace warpsmith
