// Where the extreme value of a row, or of columns, stands. A thread goes by groups of packs, of which it takes the extreme,
// 16-bit values two at once, and remembers the first group that brought its best. Which value of that group it was is
// looked up in the end, by those alone whose best is the best of all.
#pragma once

#include <bit>

#include "device/convert.h"
#include "device/shuffle.h"
#include "reduce/reduce_dim/load.cuh"
#include "reduce/reduce_dim/reducers.cuh"

namespace warpsmith {

// The extremes of two packs' values, place by place.
template <class Order, class T>
__device__ __forceinline__ Pack<T> extremes(const Pack<T>& a, const Pack<T>& b) {
  if constexpr (sizeof(T) == 2) {
    const uint4 x = std::bit_cast<uint4>(a), y = std::bit_cast<uint4>(b);
    return std::bit_cast<Pack<T>>(uint4{Order::template of_two<T>(x.x, y.x), Order::template of_two<T>(x.y, y.y),
                                        Order::template of_two<T>(x.z, y.z), Order::template of_two<T>(x.w, y.w)});
  } else {
    Pack<T> both;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) both[i] = Order::of(a[i], b[i]);
    return both;
  }
}

// What is no better than any value.
template <class Order, class T>
__device__ __forceinline__ Pack<T> nothing() {
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) pack[i] = from_float<T>(Order::worst);
  return pack;
}

// Of `count` packs, in a tree.
template <class Order, class T, int count>
__device__ __forceinline__ Pack<T> extremes_of(const Pack<T>* packs) {
  if constexpr (count == 1) {
    return packs[0];
  } else {
    return extremes<Order, T>(extremes_of<Order, T, count / 2>(packs),
                              extremes_of<Order, T, count - count / 2>(packs + count / 2));
  }
}

template <class Order, class T>
__device__ __forceinline__ float extreme(const Pack<T>& pack) {
  if constexpr (sizeof(T) == 2) {
    const uint4 x = std::bit_cast<uint4>(pack);
    const uint32_t two = Order::template of_two<T>(Order::template of_two<T>(x.x, x.y),  //
                                                   Order::template of_two<T>(x.z, x.w));
    const auto values = std::bit_cast<Vec<T, 2>>(two);
    return Order::of(to_float(values[0]), to_float(values[1]));
  } else {
    float values[kPack<T>];
    to_float(values, pack);
    return reducers::join(values, [](float a, float b) { return Order::of(a, b); });
  }
}

// The same of each of `count` packs; returns that of all.
template <class Order, class T, int count>
__device__ __forceinline__ float fold_extremes(float (&of_each)[count], const Pack<T> (&packs)[count]) {
#pragma unroll
  for (int u = 0; u < count; ++u) of_each[u] = extreme<Order>(packs[u]);
  return reducers::join(of_each, [](float a, float b) { return Order::of(a, b); });
}

// --- rows ------------------------------------------------------------------------------------------------------------

// The place among columns [begin, end) of a row. Thread `tid` of `threads` takes every threads-th pack, `unroll` of them
// as a group. All lanes of a warp take part, and those that share the row get the same.
template <class R, class Aligned, int unroll, class T>
__device__ __forceinline__ typename R::State search_span(const T* row, int64_t begin, int64_t end, int tid,
                                                         int threads) {
  using Order = typename R::Order;
  constexpr int kWidth = kPack<T>;
  const int64_t whole = (end - begin) / kWidth;  // packs
  const int step = threads * kWidth;
  int64_t pack = tid;
  const T* from = row + begin + tid * kWidth;
  uint32_t first = static_cast<uint32_t>(begin) + tid * kWidth;
  typename R::State best{Order::worst, pack < whole ? first : R::kNone};
  Pack<T> packs[unroll];
  float of_each[unroll];  // their extremes
  for (; pack + (unroll - 1) * threads < whole; pack += unroll * threads) {
#pragma unroll
    for (int u = 0; u < unroll; ++u) load_pack<Aligned>(packs[u], from + u * step);
    R::weigh(best, fold_extremes<Order>(of_each, packs), first);
    from += unroll * step;
    first += unroll * step;
  }

  // fewer than `unroll` packs are left, and after the last of all fewer values than a pack
  const int left = static_cast<int>(min(max(whole - pack, int64_t{-1}), int64_t{unroll} * threads));
  if (left > 0) {
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      packs[u] = nothing<Order, T>();
      if (u * threads < left) load_pack<Aligned>(packs[u], from + u * step);
    }
    R::weigh(best, fold_extremes<Order>(of_each, packs), first);
  }
  bool last = false, exact = false;
#pragma unroll
  for (int u = 0; u < unroll; ++u) last |= u * threads == left;
  if (last) {
#pragma unroll 1
    for (int64_t col = begin + whole * kWidth; col < end; ++col) {
      const float value = to_float(row[col]);
      if (best.at != R::kNone && !R::beats(value, best.value)) continue;
      best = {value, static_cast<uint32_t>(col)};
      exact = true;
    }
  }

  // look up
  const int lanes = min(threads, kWarp);
  const auto over_lanes = [lanes](auto value, auto join_two) {
    for (int distance = 1; distance < lanes; distance *= 2) value = join_two(value, shuffle_xor(value, distance));
    return value;
  };
  const float value = over_lanes(best.value, [](float a, float b) { return Order::of(a, b); });
  uint32_t at = R::kNone;
  if (best.at != R::kNone && R::same(best.value, value)) {
    at = best.at;
    if (!exact) {
      const T* group = row + best.at;
      const int64_t packs_left = whole - (best.at - begin) / kWidth;
      const int held = static_cast<int>(min(packs_left, int64_t{unroll} * threads));
      const bool only_group = whole <= int64_t{unroll} * threads;  // and in registers still
      if (!only_group) {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
          if (u * threads < held) load_pack<Aligned>(packs[u], group + u * step);
        }
        fold_extremes<Order>(of_each, packs);
      }
      Pack<T> chosen = packs[0];  // the first that has it
#pragma unroll
      for (int u = unroll - 1; u >= 0; --u) {
        if (u * threads < held && R::same(of_each[u], value)) {
          chosen = packs[u];
          at = best.at + u * step;
        }
      }
      int place = 0;
#pragma unroll
      for (int i = kWidth - 1; i >= 0; --i) {
        if (R::same(to_float(chosen[i]), value)) place = i;
      }
      at += place;
    }
  }
  return {value, over_lanes(at, [](uint32_t a, uint32_t b) { return min(a, b); })};
}

// --- columns ---------------------------------------------------------------------------------------------------------

// The place in a group of `count` rows, of which the first is `best.at`, or before `end`. x: [end], `stride` elements
// apart.
template <class R, int count, class T>
__device__ __forceinline__ uint32_t search_group(const typename R::State& best, const T* x, int64_t stride,
                                                 int64_t end) {
  const int rows = static_cast<int>(min(end - best.at, int64_t{count}));
  uint32_t at = best.at;
#pragma unroll
  for (int u = count - 1; u >= 0; --u) {
    if (u < rows && R::same(to_float(x[(best.at + u) * stride]), best.value)) at = best.at + u;
  }
  return at;
}

}  // namespace warpsmith
