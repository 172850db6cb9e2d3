// A block for each index: the first one of its row adds up the terms of all that name this row, in their order, and the
// others leave. Nothing is added by two blocks, so that sums are the same in every run.
#pragma once

#include "device/convert.h"
#include "device/vec.h"
#include "device/warp.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
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

// The sum of a row's terms in values [column, column + width) of it.
template <class T, int width>
struct Run {
  float sum[width] = {};

  __device__ __forceinline__ void add(const AccumulateArgs& a, int64_t outer, int64_t j, int64_t column) {
    Vec<T, width> values;
    load(values, static_cast<const T*>(a.source) + outer * a.source_outer + j * a.source_row + column);
    float wide[width];
    to_float(wide, values);
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] = a.replaces ? wide[i] : sum[i] + wide[i];
  }

  __device__ __forceinline__ void write(const AccumulateArgs& a, int64_t outer, int64_t row, int64_t column) const {
    T* y = static_cast<T*>(a.y) + outer * a.y_outer + row * a.y_row + column;
    Vec<T, width> values{};
    if (a.adds) load(values, y);
    float wide[width];
    to_float(wide, values);
#pragma unroll
    for (int i = 0; i < width; ++i) wide[i] = a.replaces ? sum[i] : fmaf(sum[i], a.alpha, wide[i]);
    from_float(values, wide);
    store(y, values);
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

// Rows that accesses of 16 bytes tile.
inline bool runs_in_packs(const AccumulateArgs& a) {
  const int width = 16 / size_of(a.dtype);
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return a.inner % width == 0 && a.y_outer % width == 0 && a.y_row % width == 0 && a.source_outer % width == 0 &&
         a.source_row % width == 0 && aligned(a.y) && aligned(a.source);
}

}  // namespace warpsmith
