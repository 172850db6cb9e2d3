// Device side of the reductions along a dimension: spans of values, states across a block, the result, and the way from
// a run-time call to a kernel template.
#pragma once

#include <utility>

#include "device/convert.h"
#include "device/shuffle.h"
#include "device/start_early.h"
#include "device/vec.h"
#include "host/launch.h"
#include "host/registry.h"
#include "reduce/reduce_dim/load.cuh"
#include "reduce/reduce_dim/reduce_dim.h"
#include "reduce/reduce_dim/reducers.cuh"
#include "reduce/reduce_dim/search.cuh"

namespace warpsmith {

template <class R>
struct Merge {
  using State = typename R::State;
  __device__ State operator()(const State& a, const State& b) const { return R::merge(a, b); }
};

// No values yet, of the reduction whose first value lies at `first`.
template <class R, class T>
__device__ __forceinline__ typename R::State start(const T* first) {
  return R::empty(R::shifts ? to_float(*first) : 0.0f);
}

template <class R, class T>
__device__ __forceinline__ void write(const ReduceDimArgs& a, int64_t output, const typename R::State& state) {
  if constexpr (R::finds_position) {
    static_cast<int64_t*>(a.y)[output] = R::finish(state, a.divisor);
  } else {
    static_cast<T*>(a.y)[output] = from_float<T>(R::finish(state, a.divisor));
  }
}

// Where output `o` reads from.
template <class T>
__device__ __forceinline__ const T* input_of(const ReduceDimArgs& a, int64_t output) {
  const int64_t o = a.inner == 1 ? output : output / a.inner;
  return static_cast<const T*>(a.x) + o * a.stride_outer + (output - o * a.inner) * a.stride_inner;
}

template <class R, class T>
__device__ __forceinline__ void take_one(typename R::State& state, const T& x, uint32_t at) {
  const float value[1] = {to_float(x)};
  R::take(state, value, at, 1);
}

// --- packs of a row --------------------------------------------------------------------------------------------------

template <class R, class T>
__device__ __forceinline__ void take_pack(typename R::State& state, const Pack<T>& pack, uint32_t first) {
  float values[kPack<T>];
  to_float(values, pack);
  R::take(state, values, first, 1);
}

// Packs of which each begins `step` columns after the one before: four at once where joining costs more than taking.
template <class R, class T, int count>
__device__ __forceinline__ void take_packs(typename R::State& state, const Pack<T> (&packs)[count], uint32_t first,
                                           int step) {
  if constexpr (R::deviates) {
    constexpr int kAtOnce = count % 4 == 0 ? 4 : 1, kWidth = kPack<T>;
#pragma unroll
    for (int u = 0; u < count; u += kAtOnce) {
      float values[kAtOnce * kWidth];
#pragma unroll
      for (int i = 0; i < kAtOnce * kWidth; ++i) values[i] = to_float(packs[u + i / kWidth][i % kWidth]);
      R::take(state, values, first, 1);
    }
  } else {
#pragma unroll
    for (int u = 0; u < count; ++u) take_pack<R>(state, packs[u], first + u * step);
  }
}

// Takes columns [begin, end) of a row: thread `tid` of `threads` takes every threads-th pack, `unroll` of them on their
// way at once. Aligned or not, the same values meet in the same order. All lanes of a warp call it together.
template <class R, class Aligned, int unroll, class T>
  requires(!R::finds_position)
__device__ __forceinline__ void take_span(typename R::State& state, const T* row, int64_t begin, int64_t end, int tid,
                                          int threads) {
  constexpr int kWidth = kPack<T>;
  const int64_t whole = (end - begin) / kWidth;  // packs
  const int step = threads * kWidth;
  int64_t pack = tid;
  const T* from = row + begin + tid * kWidth;
  uint32_t first = static_cast<uint32_t>(begin) + tid * kWidth;
  Pack<T> packs[unroll];
  for (; pack + (unroll - 1) * threads < whole; pack += unroll * threads) {
#pragma unroll
    for (int u = 0; u < unroll; ++u) load_pack<Aligned>(packs[u], from + u * step);
    take_packs<R>(state, packs, first, step);
    from += unroll * step;
    first += unroll * step;
  }

  // fewer than `unroll` packs are left, and after the last of all fewer values than a pack
  const int left = static_cast<int>(min(max(whole - pack, int64_t{-1}), int64_t{unroll} * threads));
#pragma unroll
  for (int u = 0; u < unroll - 1; ++u) {
    if (u * threads < left) load_pack<Aligned>(packs[u], from + u * step);
  }
  bool last = left == (unroll - 1) * threads;
#pragma unroll
  for (int u = 0; u < unroll - 1; ++u) {
    if (u * threads < left) take_pack<R>(state, packs[u], first + u * step);
    last |= u * threads == left;
  }
  if (!last) return;
  for (int64_t col = begin + whole * kWidth; col < end; ++col) take_one<R>(state, row[col], static_cast<uint32_t>(col));
}

template <class R, class Aligned, int unroll, class T>
  requires(R::finds_position)
__device__ __forceinline__ void take_span(typename R::State& state, const T* row, int64_t begin, int64_t end, int tid,
                                          int threads) {
  state = R::merge(state, search_span<R, Aligned, unroll>(row, begin, end, tid, threads));
}

// --- states across a block -------------------------------------------------------------------------------------------

// Merges the states of lanes that share a row and have taken spans of it: of positions they hold the same.
template <class R>
__device__ __forceinline__ typename R::State merge_spans(const typename R::State& state, int lanes) {
  if constexpr (R::finds_position) {
    return state;
  } else {
    return merge_lanes(state, lanes, Merge<R>{});
  }
}

// Merges the states of the warps of a block; thread 0 gets the result. Two calls in a row need a barrier between them.
template <class R>
__device__ __forceinline__ typename R::State merge_warps(const typename R::State& state,
                                                         typename R::State (&shared)[kWarp]) {
  const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  if (warps == 1) return state;
  if (lane == 0) shared[threadIdx.x / kWarp] = state;
  __syncthreads();
  if (threadIdx.x >= kWarp) return state;
  return merge_lanes(lane < warps ? shared[lane] : R::empty(0.0f), kWarp, Merge<R>{});
}

// --- from a call to a kernel template --------------------------------------------------------------------------------

// Calls body.template operator()<R, T>() for the call's reducer, one of those that the library has, and dtype.
template <class Body>
void visit_reducer(const ReduceDimArgs& a, Body&& body) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    const auto one = [&]<size_t index>() {
      using R = std::tuple_element_t<static_cast<size_t>(kPart[index]), Reducers>;
      dispatch_float(a.dtype, [&]<class T>() { body.template operator()<R, T>(); });
    };
    static_cast<void>(((a.reduction == kPart[i] ? (one.template operator()<i>(), true) : false) || ...));
  }(std::make_index_sequence<std::size(kPart)>{});
}

// The same with the type of `aligned`.
template <class Body>
void visit_aligned_reducer(const ReduceDimArgs& a, bool aligned, Body&& body) {
  visit_reducer(a, [&]<class R, class T>() {
    if (aligned) {
      body.template operator()<R, T, std::true_type>();
    } else {
      body.template operator()<R, T, std::false_type>();
    }
  });
}

// Whether packs can be read 16 bytes at a time.
inline bool has_aligned_rows(const ReduceDimArgs& a) {
  const int width = 16 / size_of(a.dtype);
  return is_aligned(a.x, 16) && a.stride_outer % width == 0;
}

inline bool has_aligned_columns(const ReduceDimArgs& a) {
  const int width = 16 / size_of(a.dtype);
  return has_aligned_rows(a) && a.stride_n % width == 0 && a.inner % width == 0;
}

}  // namespace warpsmith
