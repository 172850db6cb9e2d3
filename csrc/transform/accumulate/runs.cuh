// A block for each index: the first one of its row adds up the terms of all that name this row, in their order, and the
// others leave. Nothing is added by two blocks, so that sums are the same in every run.
#pragma once

#include "device/convert.h"
#include "device/fast_divide.h"
#include "device/vec.h"
#include "device/warp.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/min_max.h"
#include "host/registry.h"
#include "transform/accumulate/accumulate.h"
#include "transform/indices.cuh"

namespace warpsmith {

inline constexpr int kRunThreads = 128;

// The row that an index names; -1 where it adds nothing.
__device__ __forceinline__ int64_t row_of(const AccumulateArgs& a, int64_t index) {
  if (index < 0 && a.drops) return -1;
  if (index < 0 && a.from_the_end) index += a.rows;
  check_index(index, a.rows);
  return index == a.left_out ? -1 : index;
}

// Which indices name a row that something is added to; they are not judged.
struct SameRow {
  int64_t row, from_the_end;

  __device__ __forceinline__ SameRow(const AccumulateArgs& a, int64_t row_)
      : row(row_), from_the_end(a.from_the_end && !a.drops ? row_ - a.rows : row_) {}
  __device__ __forceinline__ bool operator()(int64_t index) const { return index == row || index == from_the_end; }
};

// Whether the one term of a row is the row.
__device__ __forceinline__ bool is_moved(const AccumulateArgs& a, int64_t terms) {
  return a.replaces || (terms == 1 && !a.adds && a.alpha == 1.0f);
}

// The sum of a row's terms in values [column, column + width) of it.
template <class T, int width>
struct Run {
  float sum[width] = {};

  __device__ __forceinline__ static Vec<T, width> term(const AccumulateArgs& a, int64_t outer, int64_t j,
                                                       int64_t column) {
    Vec<T, width> values;
    load(values, static_cast<const T*>(a.source) + outer * a.source_outer + j * a.source_row + column);
    return values;
  }

  __device__ __forceinline__ void add(const AccumulateArgs& a, int64_t outer, int64_t j, int64_t column) {
    float wide[width];
    to_float(wide, term(a, outer, j, column));
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] += wide[i];
  }

  // What y holds there.
  __device__ __forceinline__ static Vec<T, width> held(const AccumulateArgs& a, int64_t outer, int64_t row,
                                                       int64_t column) {
    Vec<T, width> values{};
    if (a.adds) load(values, static_cast<const T*>(a.y) + outer * a.y_outer + row * a.y_row + column);
    return values;
  }

  __device__ __forceinline__ static void put(const AccumulateArgs& a, int64_t outer, int64_t row, int64_t column,
                                             const Vec<T, width>& values) {
    T* y = static_cast<T*>(a.y) + outer * a.y_outer + row * a.y_row + column;
    if constexpr (sizeof(values) == 16) {
      ptx::store_at_once(reinterpret_cast<uint4*>(y), *reinterpret_cast<const uint4*>(&values));
    } else {
      store(y, values);
    }
  }

  __device__ __forceinline__ void write(const AccumulateArgs& a, int64_t outer, int64_t row, int64_t column,
                                        Vec<T, width> values) const {
    float wide[width];
    to_float(wide, values);
#pragma unroll
    for (int i = 0; i < width; ++i) wide[i] = fmaf(sum[i], a.alpha, wide[i]);
    from_float(values, wide);
    put(a, outer, row, column, values);
  }

  __device__ __forceinline__ void write(const AccumulateArgs& a, int64_t outer, int64_t row, int64_t column) const {
    write(a, outer, row, column, held(a, outer, row, column));
  }
};

// Blocks are [count, columns, outer]; more of the latter two than a grid counts are gone through.
template <int width>
LaunchConfig run_config(const AccumulateArgs& a) {
  constexpr int64_t kMost = 65535;
  const int64_t columns = ceil_div(a.inner, int64_t{kRunThreads} * width);
  const dim3 grid(static_cast<unsigned>(a.count), static_cast<unsigned>(columns < kMost ? columns : kMost),
                  static_cast<unsigned>(a.outer < kMost ? a.outer : kMost));
  return {.grid = grid, .block = kRunThreads};
}

// A thread's accesses to a row, all outer indices together, in places. Blocks are [count, shares of the places]: so few of an
// index that a thread has kPlaces, kTogether of them on their way, as long as there are blocks enough for the GPU.
inline constexpr int kPlaces = 8, kTogether = 4;
inline constexpr int64_t kManyBlocks = 4096;

struct Places {
  FastDivide across;  // of an outer index
  int64_t count;

  Places(const AccumulateArgs& a, int width)
      : across(static_cast<uint64_t>(ceil_div(a.inner, int64_t{kRunThreads} * width))),
        count(a.outer * static_cast<int64_t>(across.divisor)) {}

  int64_t shares(const AccumulateArgs& a) const {
    constexpr int64_t kMost = 65535;
    return min_of(std::max(ceil_div(count, kPlaces), ceil_div(kManyBlocks, a.count)), count, kMost);
  }

  // Calls body.template operator()<together>(config).
  template <class Body>
  void dispatch(const AccumulateArgs& a, Body&& body) const {
    const dim3 grid(static_cast<unsigned>(a.count), static_cast<unsigned>(shares(a)));
    const LaunchConfig config{.grid = grid, .block = kRunThreads};
    // where blocks have a place or two, more of them fit the GPU if they ask for less
    count > 2 * shares(a) ? body.template operator()<kTogether>(config) : body.template operator()<1>(config);
  }
};

// Of a block's share those from `first` on.
template <int width, int together>
struct SomePlaces {
  int64_t outer[together], column[together];
  bool there[together];

  __device__ __forceinline__ SomePlaces(const AccumulateArgs& a, const Places& places, int64_t first) {
#pragma unroll
    for (int u = 0; u < together; ++u) {
      const int64_t place = first + u * int64_t{gridDim.y};
      outer[u] = places.across.quotient_as(place);
      const int64_t chunk = place - outer[u] * static_cast<int64_t>(places.across.divisor);
      column[u] = (chunk * kRunThreads + static_cast<int>(threadIdx.x)) * width;
      there[u] = place < places.count && column[u] < a.inner;
    }
  }
};

// Rows that accesses of 16 bytes tile.
inline bool runs_in_packs(const AccumulateArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return a.inner % width == 0 && a.y_outer % width == 0 && a.y_row % width == 0 && a.source_outer % width == 0 &&
         a.source_row % width == 0 && aligned(a.y) && aligned(a.source);
}

}  // namespace warpsmith
