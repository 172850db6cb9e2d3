// Which bin a value falls into, and walks over values.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "device/vec.h"
#include "host/launch.h"
#include "host/min_max.h"
#include "vision/histogram/histogram.h"

namespace warpsmith {

inline constexpr int kHistogramThreads = 256;

// The bin of a value, or a number of `bins` or more where it falls into none. Integers: unsigned comparison leaves negative
// ones out.
template <class T>
struct BinOf {
  uint32_t bins;
  bool is_unsigned;

  __device__ BinOf(const HistogramArgs& a, const float*)
      : bins(static_cast<uint32_t>(a.bins)), is_unsigned(a.is_unsigned) {}

  __device__ __forceinline__ uint32_t operator()(T value) const {
    if constexpr (sizeof(T) == 1) {
      if (is_unsigned) return static_cast<uint8_t>(value);
    }
    return static_cast<uint32_t>(static_cast<int32_t>(value));
  }
};

// Floats: a search among the edges, whose every step is the same in all implementations, so that edges that are out of
// order mean the same, too. Where they are known to be in order, and evenly spaced, as most are, an edge's number follows
// from the value.
template <>
struct BinOf<float> {
  const float* edges;
  uint32_t bins;
  float first, last, scale;
  bool in_order;

  // `at`: where the edges are, in global or shared memory.
  __device__ BinOf(const HistogramArgs& a, const float* at, bool in_order_ = false)
      : edges(at), bins(static_cast<uint32_t>(a.bins)), in_order(in_order_) {
    first = edges[0];
    last = edges[bins];
    scale = static_cast<float>(bins) / (last - first);
  }

  __device__ __forceinline__ uint32_t operator()(float value) const {
    if (!(value >= first && value <= last)) return bins;  // NaN falls into none
    if (value == last) return bins - 1;
    if (in_order) {
      const float guess = (value - first) * scale;  // NaN where the edges span more than floats do, or nothing
      const uint32_t near = guess > 0.0f ? min(static_cast<uint32_t>(guess), bins - 1) : 0;
      if (edges[near] <= value && value < edges[near + 1]) return near;
    }
    uint32_t low = 0, high = bins;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (edges[middle] <= value ? low : high) = middle;
    }
    return low;
  }
};

// The values before the first border of 16 bytes, the packs after it, and what is left.
struct Cuts {
  int64_t head, packs;

  template <class T>
  __host__ __device__ static Cuts of(const T* x, int64_t n) {
    constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
    const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
    const int64_t gap = beyond == 0 ? 0 : kWidth - beyond, head = gap < n ? gap : n;
    return {head, (n - head) / kWidth};
  }
};

// Calls count(value), or count(pack) where it takes packs, for each value of x once over the whole grid, `kUnroll` packs of a
// thread on their way.
template <int kUnroll, class T, class Count>
__device__ __forceinline__ void walk_values(const T* x, int64_t n, Count count) {
  constexpr int kWidth = kPack<T>;
  const Cuts cuts = Cuts::of(x, n);
  const int64_t thread = int64_t{blockIdx.x} * kHistogramThreads + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kHistogramThreads;
  const T* body = x + cuts.head;
  const auto add = [&](const Pack<T>& pack) {
    if constexpr (std::is_invocable_v<Count, const Pack<T>&>) {
      count(pack);
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) count(pack[k]);
    }
  };
  int64_t i = thread;
  if constexpr (kUnroll > 1) {
    for (; i + (kUnroll - 1) * threads < cuts.packs; i += kUnroll * threads) {
      Pack<T> packs[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) load<Cache::streaming>(packs[u], body + (i + u * threads) * kWidth);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) add(packs[u]);
    }
  }
  for (; i < cuts.packs; i += threads) {
    Pack<T> pack;
    load<Cache::streaming>(pack, body + i * kWidth);
    add(pack);
  }
  if (thread < cuts.head) count(x[thread]);
  const int64_t rest = cuts.head + cuts.packs * kWidth + thread;
  if (rest < n) count(x[rest]);
}

__device__ __forceinline__ void add_count(int64_t* counts, uint32_t bin, uint32_t by) {
  atomicAdd(reinterpret_cast<unsigned long long*>(counts) + bin, static_cast<unsigned long long>(by));
}

template <class Body>
void dispatch_counted(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::f32:
      return body.template operator()<float>();
    case Dtype::i32:
      return body.template operator()<int32_t>();
    case Dtype::i8:
      return body.template operator()<int8_t>();
    default:
      no_kernel_for(dtype);
  }
}

// Blocks for so many accesses, of which the GPU has `resident` at once: more would only add up more partial histograms.
inline unsigned histogram_grid(int64_t accesses, int64_t resident) {
  return static_cast<unsigned>(clamp<int64_t>(ceil_div(accesses, kHistogramThreads), 1, resident));
}

}  // namespace warpsmith
