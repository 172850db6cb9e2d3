// Channels last: a block takes a tile of the channels, whole groups of them, and a thread one column of it, a pack of
// channels, down which it walks position by position. Groups of any number of channels may share a pack.
#pragma once

#include "host/min_max.h"
#include "norm/group.cuh"

namespace warpsmith {

inline constexpr int kTileThreads = kMostColumns;  // of a block, at most

// How tiles divide the channels.
struct ColumnTiling {
  int64_t c, spatial;
  int groups, group_channels;
  int run;      // of a pack, neighbouring channels that no group ever parts: a power of two
  int packs;    // of a position
  int columns;  // packs of a tile; the last may have fewer
  int tiles;

  // Tiles of at most `most` columns, unless a single run of whole groups and packs is longer.
  ColumnTiling(const GroupShape& s, Dtype dtype, int64_t most)
      : c(s.c),
        spatial(s.spatial),
        groups(static_cast<int>(s.groups)),
        group_channels(static_cast<int>(s.group_channels())),
        run(std::gcd(group_channels, 16 / size_of(dtype))),
        packs(static_cast<int>(s.c / (16 / size_of(dtype)))) {
    const int64_t unit = unit_packs(s, dtype), units = packs / unit;
    const int64_t wanted = ceil_of(units, clamp<int64_t>(most / unit, 1, units));
    columns = static_cast<int>(ceil_of(units, wanted) * unit);
    tiles = static_cast<int>(ceil_of(packs, columns));
  }

  unsigned threads() const {
    const int lanes = std::max(kTileThreads / columns, 1);
    return static_cast<unsigned>(ceil_of(int64_t{lanes} * columns, kWarp) * kWarp);
  }
};

// a / b for 0 <= a < 2^20 and b > 0. The half keeps the quotient further from any integer than it is wrong.
__device__ __forceinline__ int small_quotient(int a, int b) {
  return static_cast<int>((static_cast<float>(a) + 0.5f) * ptx::reciprocal_approx(static_cast<float>(b)));
}

// A thread's place in a block: a column, and a lane, one of the positions that the block covers at a time.
struct Column {
  int columns, lanes;
  int lane, at;
  bool active;

  __device__ Column(const ColumnTiling& t, int tile)
      : columns(min(t.columns, t.packs - tile * t.columns)),
        lanes(small_quotient(blockDim.x, columns)),
        lane(small_quotient(threadIdx.x, columns)),
        at(threadIdx.x - lane * columns),
        active(lane < lanes) {}
};

// Calls body(i, group) for each channel `first` + i of a pack.
template <int width, class Body>
__device__ __forceinline__ void over_groups(int first, int group_channels, Body&& body) {
  int group = small_quotient(first, group_channels), within = first - group * group_channels;
#pragma unroll
  for (int i = 0; i < width; ++i) {
    body(i, group);
    if (++within == group_channels) {
      within = 0;
      ++group;
    }
  }
}

// The moments of each channel of a thread's pack, in one pass around the first values: these are off by at most the
// spread of all, so little cancels, and nothing where all values are the same.
template <int width>
struct PackMoments {
  float around[width] = {}, deviations[width] = {}, squares[width] = {};

  template <class T>
  __device__ __forceinline__ void start(const Pack<T>& first) {
    to_float(around, first);
  }
  template <class T>
  __device__ __forceinline__ void add(const Pack<T>& pack) {
    float values[width];
    to_float(values, pack);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float deviation = values[i] - around[i];
      deviations[i] += deviation;
      squares[i] = fmaf(deviation, deviation, squares[i]);
    }
  }
};

// Walks a thread down its column, or up where `stride` is negative, `batch` items on their way at a time:
// load(item, offset), then body(item, offset), `stride` from a position to the next. Offsets stay below 2^31.
template <class Item, int batch, class Load, class Body>
__device__ __forceinline__ void walk_column(const Column& column, int positions, int stride, Load&& load, Body&& body) {
  const int lanes = column.lanes, step = lanes * stride;
  int left = positions - column.lane, offset = column.lane * stride;
  for (; left > (batch - 1) * lanes; left -= batch * lanes, offset += batch * step) {
    Item items[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) load(items[i], offset + i * step);
#pragma unroll
    for (int i = 0; i < batch; ++i) body(items[i], offset + i * step);
  }
  Item items[batch - 1];
#pragma unroll
  for (int i = 0; i < batch - 1; ++i) {
    if (i * lanes < left) load(items[i], offset + i * step);
  }
#pragma unroll
  for (int i = 0; i < batch - 1; ++i) {
    if (i * lanes < left) body(items[i], offset + i * step);
  }
}

// Sums over `threads` neighbours, a power of two up to a warp; all of them get the same bits.
__device__ __forceinline__ float sum_neighbours(float value, int threads) {
  for (int distance = threads / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// Moments of `count` values in parts {mean, m2}, over `threads` neighbours: each calls take(part, values of the part)
// for its own in over_parts(take), twice. Every thread of the warp must come.
template <class OverParts>
__device__ __forceinline__ Moments join_parts(float count, int threads, OverParts&& over_parts) {
  const float share = count > 0.0f ? ptx::reciprocal_approx(count) : 0.0f;
  float mean = 0.0f;
  over_parts([&](const float2& part, float of) { mean = fmaf(of * share, part.x, mean); });
  mean = sum_neighbours(mean, threads);
  float deviations = 0.0f, squares = 0.0f;
  over_parts([&](const float2& part, float of) {
    const float deviation = part.x - mean;
    deviations = fmaf(of, deviation, deviations);
    squares += fmaf(of * deviation, deviation, part.y);
  });
  return moments_around(count, mean, sum_neighbours(deviations, threads), sum_neighbours(squares, threads));
}

// Leaves the thread's moments {mean, m2} in `to`, [width / run]: of each run of channels at `count` positions.
template <int width>
__device__ __forceinline__ void store_moments(float2* to, const PackMoments<width>& mine, float count, int run) {
  const float inverse = count > 0.0f ? ptx::reciprocal_approx(count) : 0.0f;
  float mean[width], m2[width];
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const float off = mine.deviations[i] * inverse;
    mean[i] = mine.around[i] + off;
    m2[i] = fmaf(-off, mine.deviations[i], mine.squares[i]);
    m2[i] = m2[i] < 0.0f ? 0.0f : m2[i];
  }
#pragma unroll
  for (int size = 1; size <= width; size *= 2) {  // of the runs so far
    if (size == run) {
#pragma unroll
      for (int i = 0; i < width / size; i += 2) {
        const int at = i * size, next = (at + size) % width;
        if (size < width) {
          *reinterpret_cast<float4*>(to + i) = float4{mean[at], m2[at], mean[next], m2[next]};
        } else {
          *to = float2{mean[at], m2[at]};
        }
      }
    } else if (size < run) {
#pragma unroll
      for (int i = 0; i < width; i += 2 * size) {
        const int next = (i + size) % width;
        const float apart = mean[next] - mean[i];
        mean[i] = fmaf(0.5f, apart, mean[i]);
        m2[i] = fmaf(0.5f * count * apart, apart, m2[i] + m2[next]);
      }
      count *= 2.0f;
    }
  }
}

// Joins the moments of all lanes and channels of each group of the tile, always in the same order: `threads` neighbours
// call body(group of the tile, which of them, threads, moments). `positions` is what the block has walked, `shared`
// [lanes, columns, width / run], aligned to 16 bytes.
template <int width, class Body>
__device__ __forceinline__ void merge_groups(const PackMoments<width>& mine, float2* shared, const Column& column,
                                             int positions, const ColumnTiling& tiling, Body&& body) {
  const int lanes = column.lanes, least = positions / lanes, longer = positions - least * lanes;
  const auto walked = [&](int lane) { return static_cast<float>(lane < longer ? least + 1 : least); };
  const int of_pack = width / tiling.run, of_group = tiling.group_channels / tiling.run;  // runs
  const int of_lane = column.columns * of_pack, groups = small_quotient(of_lane, of_group);
  if (column.active) {
    float2* to = shared + column.lane * of_lane + column.at * of_pack;
    store_moments(to, mine, walked(column.lane), tiling.run);
  }
  __syncthreads();
  int log = 5;  // of the threads that join a group
  while (log > 0 && groups << log > static_cast<int>(blockDim.x)) --log;
  const int threads = 1 << log, thread = threadIdx.x & (threads - 1);
  // They take `across` of its runs at a time, and as many lanes as there are threads left.
  const int across = min(of_group, threads), down = small_quotient(threads, across);
  const int first_lane = small_quotient(thread, across), first_run = thread - first_lane * across;
  const float count = static_cast<float>(positions) * static_cast<float>(tiling.group_channels);
  const auto run = static_cast<float>(tiling.run);
  for (int first = threadIdx.x / kWarp * kWarp >> log; first < groups; first += blockDim.x >> log) {  // of the warp
    const int group = first + (threadIdx.x % kWarp >> log);
    const int most = group < groups && first_lane < down ? lanes : 0;
    const Moments merged = join_parts(count, threads, [&](auto&& take) {
      for (int i = first_run; i < of_group; i += across) {
        const float2* parts = shared + group * of_group + i;
        for (int lane = first_lane; lane < most; lane += down) take(parts[lane * of_lane], run * walked(lane));
      }
    });
    if (group < groups) body(group, thread, threads, merged);
  }
}

// What makes the results of a thread's pack: y = activation((x - mean) * scale + shift), channel by channel.
template <int width, class Activation>
struct PackFactors {
  float mean[width], scale[width], shift[width];

  // Of channels `first` and on; then each wants its group's normaliser.
  template <class T>
  __device__ __forceinline__ PackFactors(int first, const PerChannel<T>& weight, const PerChannel<T>& bias) {
    constexpr float kUnit = kArgumentUnit<Activation, T>;
    weight.read(scale, first);
    bias.read(shift, first);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      scale[i] *= kUnit;
      shift[i] *= kUnit;
    }
  }
  __device__ __forceinline__ void normalise(int i, const Normaliser& n) {
    mean[i] = n.mean;
    scale[i] *= n.rstd;
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
