// What the row rungs share: the kernel's view of its operands, and the way from a run-time call to a kernel template.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "device/convert.h"
#include "elementwise/map/functions.h"
#include "elementwise/map/map.h"
#include "host/ceil_div.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {

// f32 keeps PyTorch's accuracy, narrower types take the fast formulas.
template <class T>
inline constexpr bool kExact = std::is_same_v<T, float>;

// Operands as rows of unit-stride elements, addressed by groups of `width` elements.
template <class Map, class T>
struct Rows {
  static constexpr int operands = Map::outputs + Map::inputs;
  T* data[operands];  // outputs first; [rows, cols] with a pitch each
  int64_t pitch[operands];
  int64_t rows, cols;
  int64_t groups;        // over all rows
  int64_t whole_groups;  // those before a tail: only a single row may end in a part of a group
  FastDivide groups_per_row;
  float parameter;
};

template <class Map, class T>
Rows<Map, T> make_rows(const MapArgs& a, int width) {
  Rows<Map, T> view;
  for (int i = 0; i < view.operands; ++i) {
    view.data[i] = static_cast<T*>(a.data[i]);
    view.pitch[i] = a.pitch[i];
  }
  view.rows = a.rows;
  view.cols = a.cols;
  const int64_t per_row = ceil_div(a.cols, width);
  view.groups = a.rows * per_row;
  view.whole_groups = a.rows == 1 ? a.cols / width : view.groups;
  view.groups_per_row = FastDivide(per_row);
  view.parameter = a.parameter;
  return view;
}

// Where a group starts.
struct Position {
  int64_t row, col;
};

template <int width, class View>
__device__ __forceinline__ Position locate(const View& view, int64_t group) {
  if (view.rows == 1) return {0, group * width};
  const int64_t row = view.groups_per_row.quotient(group);
  return {row, (group - row * static_cast<int64_t>(view.groups_per_row.divisor)) * width};
}

// Computes n elements in registers.
template <class Map, class T, int n>
__device__ __forceinline__ void compute(Vec<T, n> (&out)[Map::outputs], const Vec<T, n> (&in)[Map::inputs],
                                        float parameter) {
  float x[Map::inputs][n], y[Map::outputs][n];
#pragma unroll
  for (int k = 0; k < Map::inputs; ++k) to_float(x[k], in[k]);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    float from[Map::inputs], to[Map::outputs];
#pragma unroll
    for (int k = 0; k < Map::inputs; ++k) from[k] = x[k][i];
    Map::template apply<kExact<T>>(to, from, parameter);
#pragma unroll
    for (int k = 0; k < Map::outputs; ++k) y[k][i] = to[k];
  }
#pragma unroll
  for (int k = 0; k < Map::outputs; ++k) from_float(out[k], y[k]);
}

// A pack of every input.
template <class Map, class T>
__device__ __forceinline__ void load_packs(Pack<T> (&in)[Map::inputs], const Rows<Map, T>& view, const Position& at,
                                           uint64_t policy) {
#pragma unroll
  for (int k = 0; k < Map::inputs; ++k) {
    constexpr int first = Map::outputs;
    load_with_policy(in[k], view.data[first + k] + at.row * view.pitch[first + k] + at.col, policy);
  }
}

// All inputs of `width` elements, from one position.
template <class Map, int width, Cache cache, class T>
__device__ __forceinline__ void load_inputs(Vec<T, width> (&in)[Map::inputs], const Rows<Map, T>& view,
                                            const Position& at) {
#pragma unroll
  for (int k = 0; k < Map::inputs; ++k) {
    load<cache>(in[k], view.data[Map::outputs + k] + at.row * view.pitch[Map::outputs + k] + at.col);
  }
}

template <class Map, int width, Cache cache, class T>
__device__ __forceinline__ void store_outputs(const Rows<Map, T>& view, const Position& at,
                                              const Vec<T, width> (&out)[Map::outputs]) {
#pragma unroll
  for (int k = 0; k < Map::outputs; ++k) {
    store<cache>(view.data[k] + at.row * view.pitch[k] + at.col, out[k]);
  }
}

// One element at a time from `at.col` to the end of the row: what is left of a row that is no whole number of groups.
template <class Map, class T>
__device__ void finish_row(const Rows<Map, T>& view, Position at) {
  for (; at.col < view.cols; ++at.col) {
    Vec<T, 1> in[Map::inputs], out[Map::outputs];
    load_inputs<Map, 1, Cache::normal>(in, view, at);
    compute<Map>(out, in, view.parameter);
    store_outputs<Map, 1, Cache::normal>(view, at, out);
  }
}

// Calls body.template operator()<Map, T>() for the call's map, one of those that the library has, and dtype.
template <class Body>
void visit_map(const MapArgs& a, Body&& body) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    const auto one = [&]<size_t index>() {
      using Map = std::tuple_element_t<index, Maps>;
      dispatch_floating(a.dtype, [&]<class T>() { body.template operator()<Map, T>(); });
    };
    static_cast<void>(((a.map == static_cast<int>(i) ? (one.template operator()<i>(), true) : false) || ...));
  }(std::make_index_sequence<std::tuple_size_v<Maps>>{});
}

}  // namespace warpsmith
