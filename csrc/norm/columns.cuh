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

// The moments of each channel of a thread's pack, in one pass around the first values: these are off by at most the
// spread of all, so little cancels, and nothing where all values are the same.
template <int width>
struct PackMoments {
  float around[width] = {}, deviations[width] = {}, squares[width] = {};

  __device__ __forceinline__ void start(const float (&values)[width]) {
#pragma unroll
    for (int i = 0; i < width; ++i) around[i] = values[i];
  }
  __device__ __forceinline__ void add(const float (&values)[width]) {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float deviation = values[i] - around[i];
      deviations[i] += deviation;
      squares[i] = fmaf(deviation, deviation, squares[i]);
    }
  }
};

// Walks a thread down its column, `batch` items on their way at a time: load(item, offset), then body(item, offset,
// whether it is the first), with the offset of the position in a [positions, c] tensor of fewer than 2^31 values.
template <class Item, int batch, class Load, class Body>
__device__ __forceinline__ void walk_column(const Column& column, int positions, int64_t c, Load&& load, Body&& body) {
  const int lanes = column.lanes;
  const int step = lanes * static_cast<int>(c);
  int offset = column.lane * static_cast<int>(c);
  for (int position = column.lane; position < positions; position += batch * lanes, offset += batch * step) {
    Item items[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (position + i * lanes < positions) load(items[i], offset + i * step);
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (position + i * lanes < positions) body(items[i], offset + i * step, i == 0 && position == column.lane);
    }
  }
}

// Shared memory in which the lanes of a block meet: {mean, m2} per lane and channel.
template <int width>
struct LaneMoments {
  float2 of[kTileThreads * width];  // [lanes, width, columns]: neighbouring threads write side by side
};

// Joins the moments of all lanes and channels of each group of the tile, always in the same order; a whole warp calls
// body(group of the tile, moments). `positions` is what the block has walked.
template <int width, class Body>
__device__ __forceinline__ void merge_groups(const PackMoments<width>& mine, LaneMoments<width>& shared,
                                             const Column& column, int positions, int group_channels, Body&& body) {
  const int columns = column.columns, lanes = column.lanes;
  if (column.active) {
    const auto count = static_cast<float>(column.share(positions, column.lane));
    float2* to = &shared.of[column.lane * width * columns + column.at];
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const Moments moments = moments_around(count, mine.around[i], mine.deviations[i], mine.squares[i]);
      to[i * columns] = float2{moments.mean, moments.m2};
    }
  }
  __syncthreads();
  // A warp takes a group, `run` of its channels and 32 / run lanes of the block at a time.
  const int warps = blockDim.x / kWarp, thread = threadIdx.x % kWarp;
  const int run = min(group_channels, kWarp), step = kWarp / run;
  const int first_lane = thread / run, first_channel = thread - first_lane * run;
  const int most = first_lane < step ? lanes : 0, least = positions / lanes, longer = positions - least * lanes;
  const float count = static_cast<float>(positions) * static_cast<float>(group_channels);
  const float share = positions > 0 ? 1.0f / count : 0.0f;
  const auto walked = [&](int lane) { return static_cast<float>(lane < longer ? least + 1 : least); };
  for (int group = threadIdx.x / kWarp; group * group_channels < columns * width; group += warps) {
    const auto over_parts = [&](auto&& take) {
      for (int i = first_channel; i < group_channels; i += run) {
        const int channel = group * group_channels + i;
        const float2* part = &shared.of[channel % width * columns + channel / width];
        for (int lane = first_lane; lane < most; lane += step) take(part[lane * width * columns], walked(lane));
      }
    };
    float mean = 0.0f;
    over_parts([&](const float2& part, float of) { mean = fmaf(of * share, part.x, mean); });
    mean = warp_reduce(mean);
    float deviations = 0.0f, squares = 0.0f;
    over_parts([&](const float2& part, float of) {
      const float deviation = part.x - mean;
      deviations = fmaf(of, deviation, deviations);
      squares += fmaf(of * deviation, deviation, part.y);
    });
    body(group, moments_around(count, mean, warp_reduce(deviations), warp_reduce(squares)));
  }
}

// What makes the results of a thread's pack: y = activation((x - mean) * scale + shift), channel by channel.
template <int width, class Activation>
struct PackFactors {
  float mean[width], scale[width], shift[width];

  template <class T>
  __device__ __forceinline__ void set(int i, const Normaliser& n, int64_t channel, const PerChannel<T>& weight,
                                      const PerChannel<T>& bias) {
    constexpr float kUnit = kArgumentUnit<Activation, T>;
    mean[i] = n.mean;
    scale[i] = n.rstd * (weight[channel] * kUnit);
    shift[i] = bias[channel] * kUnit;
  }

  template <class T>
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
