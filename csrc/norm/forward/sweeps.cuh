// The rungs that sweep a row as often as they need to: a block per row. One sweep for RMS norm and two for layer norm gather
// the statistics, another one writes y. Where there is a residual, the first sweep adds it and writes h; each thread reads
// back only what it wrote itself. How a thread goes over the row, and how the threads of a block add up, is the rung's:
//
//   struct Way {
//     static constexpr int kMostThreads, kMinBlocks;
//     static constexpr int width<T>;  // values of an access
//     // Calls use(part, values, col) for the accesses of this thread, `part` being a few of them; then join(part).
//     static void walk<Part>(int64_t cols, load, use, join);
//     struct Storage;
//     static A block_sum(A, Storage&);  // every thread gets it; the storage is free again two sums later
//   };
#pragma once

#include "device/add.h"
#include "norm/forward/row.cuh"

namespace warpsmith {

// Values that meet before they join the others: a long sum that is rounded at every value loses the last digits of rstd.
inline constexpr int kTogether = 8;

// An access of n values at a time.
template <int n>
struct InAccesses {
  template <class T>
  static constexpr int width = n;

  template <class Part, class T, class Load, class Use, class Join>
  __device__ __forceinline__ static void walk(int64_t cols, Load&& load, Use&& use, Join&& join) {
    constexpr int kSteps = kTogether / n > 1 ? kTogether / n : 1, kUnroll = n == 1 ? 2 : kSteps;
    const int64_t step = int64_t{n} * blockDim.x;
#pragma unroll 2
    for (int64_t start = int64_t{n} * threadIdx.x; start < cols; start += kSteps * step) {
      Part part{};
#pragma unroll kUnroll
      for (int k = 0; k < kSteps; ++k) {
        const int64_t col = start + k * step;
        if (col < cols) use(part, load.template operator()<n>(col), col);
      }
      join(part);
    }
  }
};

// As many single values as a pack has, all on their way before the first is used: neighbouring threads take neighbouring
// values, blockDim.x apart from load to load.
struct Unrolled {
  template <class T>
  static constexpr int width = 1;

  template <class Part, class T, class Load, class Use, class Join>
  __device__ __forceinline__ static void walk(int64_t cols, Load&& load, Use&& use, Join&& join) {
    constexpr int kLoads = kPack<T>;
    for (int64_t start = threadIdx.x; start < cols; start += int64_t{kLoads} * blockDim.x) {
      Vec<T, 1> values[kLoads];
      Part part{};
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t col = start + int64_t{i} * blockDim.x;
        if (col < cols) values[i] = load.template operator()<1>(col);
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t col = start + int64_t{i} * blockDim.x;
        if (col < cols) use(part, values[i], col);
      }
      join(part);
    }
  }
};

// Lanes exchange registers, and one value per warp goes through shared memory.
struct ByShuffles {
  template <class A>
  struct Storage {
    A partial[kWarp];
  };
  template <class A>
  __device__ __forceinline__ static A block_sum(A value, Storage<A>& storage) {
    return warpsmith::block_sum(value, storage.partial);
  }
};

// Half of the threads drop out at every level of a tree in shared memory, each level behind a barrier.
struct ByTree {
  static constexpr int kThreads = 256;
  template <class A>
  struct Storage {
    A partial[kThreads];
  };
  template <class A>
  __device__ __forceinline__ static A block_sum(A value, Storage<A>& storage) {
    const int tid = threadIdx.x;
    storage.partial[tid] = value;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (tid < half) storage.partial[tid] = Add{}(storage.partial[tid], storage.partial[tid + half]);
      __syncthreads();
    }
    return storage.partial[0];
  }
};

template <class Walk, class Sums, int threads, int min_blocks>
struct Way : Walk, Sums {
  static constexpr int kMostThreads = threads, kMinBlocks = min_blocks;
};

template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162>;

// A thread's part of the sum of squares. Sums of f32 carry along what rounding loses (Kahan 1965): rstd is one value a row,
// whose error nothing averages.
template <class A>
struct Squares {
  A sum = from_float<A>(0.0f), lost = from_float<A>(0.0f);

  template <class T, int n>
  __device__ __forceinline__ void add(const Vec<T, n>& x) {
    if constexpr (std::is_same_v<A, float>) {
      float values[n];
      to_float(values, x);
#pragma unroll
      for (int i = 0; i < n; ++i) sum = fmaf(values[i], values[i], sum);
    } else if constexpr (n == 1) {
      sum = __hfma(x[0], x[0], sum);
    } else {  // two values an instruction
      using Pair = PairOf<T>;
      Pair pairs = reinterpret_cast<const Pair&>(x[0]);
      pairs = __hmul2(pairs, pairs);
#pragma unroll
      for (int i = 2; i < n; i += 2) {
        const Pair next = reinterpret_cast<const Pair&>(x[i]);
        pairs = __hfma2(next, next, pairs);
      }
      sum = __hadd(sum, __hadd(pairs.x, pairs.y));
    }
  }
  __device__ __forceinline__ void join(const Squares& part) {
    if constexpr (std::is_same_v<A, float>) {
      const float wanted = part.sum - lost, next = sum + wanted;
      lost = next == INFINITY ? 0.0f : (next - sum) - wanted;
      sum = next;
    } else {
      sum = __hadd(sum, part.sum);
    }
  }
};

// What becomes the mean. In f32 it is their shares of the mean that are added: sums of values leave the range where their
// mean does not.
template <class A>
struct MeanSum {
  A sum = from_float<A>(0.0f);

  template <class T, int n>
  __device__ __forceinline__ void add(const Vec<T, n>& x, float share) {
    if constexpr (std::is_same_v<A, float>) {
      float values[n];
      to_float(values, x);
#pragma unroll
      for (int i = 0; i < n; ++i) sum = fmaf(values[i], share, sum);
    } else if constexpr (n == 1) {
      sum = __hadd(sum, x[0]);
    } else {
      using Pair = PairOf<T>;
      Pair pairs = reinterpret_cast<const Pair&>(x[0]);
#pragma unroll
      for (int i = 2; i < n; i += 2) pairs = __hadd2(pairs, reinterpret_cast<const Pair&>(x[i]));
      sum = __hadd(sum, __hadd(pairs.x, pairs.y));
    }
  }
  __device__ __forceinline__ void join(const MeanSum& part) { sum = Add{}(sum, part.sum); }
};

// Of x - shift. What the deviations add up to is what the shift was off the mean by, and corrects mean and variance.
// Chan, Golub & LeVeque 1983, "Algorithms for Computing the Sample Variance: Analysis and Recommendations".
template <class A>
struct Deviations {
  A sum = from_float<A>(0.0f), square = from_float<A>(0.0f);

  template <class T, int n>
  __device__ __forceinline__ void add(const Vec<T, n>& x, A shift) {
    if constexpr (std::is_same_v<A, float>) {
      float values[n];
      to_float(values, x);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float d = values[i] - shift;
        sum += d;
        square = fmaf(d, d, square);
      }
    } else if constexpr (n == 1) {
      const A d = __hsub(x[0], shift);
      sum = __hadd(sum, d);
      square = __hfma(d, d, square);
    } else {
      using Pair = PairOf<T>;
      const Pair shifts{shift, shift};
      Pair d = __hsub2(reinterpret_cast<const Pair&>(x[0]), shifts), squares = __hmul2(d, d), sums = d;
#pragma unroll
      for (int i = 2; i < n; i += 2) {
        d = __hsub2(reinterpret_cast<const Pair&>(x[i]), shifts);
        sums = __hadd2(sums, d);
        squares = __hfma2(d, d, squares);
      }
      sum = __hadd(sum, __hadd(sums.x, sums.y));
      square = __hadd(square, __hadd(squares.x, squares.y));
    }
  }
  __device__ __forceinline__ void join(const Deviations& part) {
    sum = Add{}(sum, part.sum);
    square = Add{}(square, part.square);
  }
};

// What of a thread's sum is added to those of the others.
template <class A>
__device__ __forceinline__ A scaled(A sum, float scale) {
  if constexpr (std::is_same_v<A, float>) {
    return sum;
  } else {
    return __hmul(sum, from_float<A>(scale));
  }
}

// n neighbours of h at (row, col). The first sweep adds and hands out, later ones read back.
template <bool first, int n, class Row>
__device__ __forceinline__ Vec<typename Row::Value, n> value_of_h(const Row& v, int64_t row, int64_t col) {
  using T = typename Row::Value;
  using Flow = typename Row::Flow;
  Vec<T, n> h;
  if constexpr (!Flow::kSums) {
    load(h, v.x_row(row) + col);
  } else if constexpr (!first && !Flow::kMixed) {
    load(h, (v.h == nullptr ? v.x_row(row) : v.h_row(row)) + col);
  } else if constexpr (!first) {
    load(h, v.h_row(row) + col);
  } else {
    float values[n], others[n];
    Vec<T, n> residual{};
    v.read_x(values, row, col);
    if (v.residual != nullptr) load(residual, v.residual_row(row) + col);
    to_float(others, residual);
    if constexpr (Flow::kDropout) v.branch.apply(values, row, col);
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] += others[i];
    from_float(h, values);
    if (v.h != nullptr) store(v.h_row(row) + col, h);
  }
  return h;
}

// The last sweep, over a thread's part of a row.
template <class Way, class Row>
__device__ __forceinline__ void write_row(const Row& v, int64_t row, const RowStatistics& statistics) {
  struct Nothing {};
  const auto again = [&]<int n>(int64_t col) { return value_of_h<false, n>(v, row, col); };
  const auto normalise = [&]<int n>(Nothing&, const Vec<typename Row::Value, n>& h, int64_t col) {
    float values[n], weights[n], biases[n];
    to_float(values, h);
    v.read_columns(weights, v.weight, col, 1.0f);
    if constexpr (Row::kLayer) v.read_columns(biases, v.bias, col, 0.0f);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float weight = Row::kOffsets ? weights[i] + v.weight_offset : weights[i];
      values[i] = Row::Norm::apply(values[i], statistics, weight, Row::kLayer ? biases[i] : 0.0f);
    }
    v.write(row * v.cols + col, values, v.fp8_factor());
  };
  Way::template walk<Nothing, typename Row::Value>(v.cols, again, normalise, [](const Nothing&) {});
}

// Way: how to go over a row. A: what is added up in, float or the dtype of the row.
template <class Row, class Way, class A>
__global__ void __launch_bounds__(Way::kMostThreads, Way::kMinBlocks) norm_sweeps_kernel(const Row v) {
  using T = typename Row::Value;
  __shared__ typename Way::template Storage<A> storage[Row::kLayer ? 3 : 1];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const auto load = [&]<int n>(int64_t col) { return value_of_h<true, n>(v, row, col); };
    RowStatistics statistics{};
    if constexpr (Row::kLayer) {
      // mean
      MeanSum<A> all;
      Way::template walk<MeanSum<A>, T>(
          v.cols, load, [&]<int n>(MeanSum<A>& part, const Vec<T, n>& h, int64_t) { part.add(h, v.inverse_count); },
          [&](const MeanSum<A>& part) { all.join(part); });
      A mean = Way::block_sum(scaled(all.sum, v.partial_scale), storage[0]);
      if constexpr (!std::is_same_v<A, float>) mean = from_float<A>(to_float(mean) * v.inverse_count);

      // deviations
      Deviations<A> own;
      Way::template walk<Deviations<A>, T>(
          v.cols, [&]<int n>(int64_t col) { return value_of_h<false, n>(v, row, col); },
          [&]<int n>(Deviations<A>& part, const Vec<T, n>& h, int64_t) { part.add(h, mean); },
          [&](const Deviations<A>& part) { own.join(part); });
      const float sum = to_float(Way::block_sum(scaled(own.sum, v.partial_scale), storage[1]));
      const float square = to_float(Way::block_sum(scaled(own.square, v.partial_scale), storage[2]));
      const float distance = sum * v.inverse_count;
      const float variance = fmaf(-distance, distance, square * v.inverse_count);
      statistics = {to_float(mean) + distance, rsqrtf((variance < 0.0f ? 0.0f : variance) + v.eps)};  // NaN passes
    } else {
      // squares
      Squares<A> all;
      Way::template walk<Squares<A>, T>(
          v.cols, load, [&]<int n>(Squares<A>& part, const Vec<T, n>& h, int64_t) { part.add(h); },
          [&](const Squares<A>& part) { all.join(part); });
      const A sum = Way::block_sum(scaled(all.sum, v.partial_scale), storage[0]);
      statistics.rstd = reciprocal_rms(to_float(sum), v.inverse_count, v.eps);
    }
    const auto total = v.with_factor(statistics);
    if (threadIdx.x == 0) v.keep(row, total);
    write_row<Way>(v, row, total);
    __syncthreads();  // the next row overwrites the sums
  }
}

// each: values that a thread should have where the row is short; 0: as many threads in any case.
template <class Row, class Way, class Args>
void launch_way(const Args& a, int each, cudaStream_t stream) {
  using T = typename Row::Value;
  const unsigned threads = each > 0 ? row_threads(a.cols, each, Way::kMostThreads) : Way::kMostThreads;
  const LaunchConfig config{.grid = row_grid(a.rows), .block = threads};
  if constexpr (sizeof(T) == 2 && !Row::Flow::kSums && !Row::Flow::kFp8) {
    if (a.accumulator != Dtype::f32) return launch<&norm_sweeps_kernel<Row, Way, T>>(config, stream, Row(a));
  }
  launch<&norm_sweeps_kernel<Row, Way, float>>(config, stream, Row(a));
}

template <class Flow, class Args>
void launch_tree(const Args& a, cudaStream_t stream) {
  visit_norm<Flow>(
      a, [&]<class Row>() { launch_way<Row, Way<InAccesses<1>, ByTree, ByTree::kThreads, 1>>(a, 0, stream); });
}

// One value an access.
template <class Flow, class Args>
void launch_single(const Args& a, cudaStream_t stream) {
  visit_norm<Flow>(a, [&]<class Row>() { launch_way<Row, Way<InAccesses<1>, ByShuffles, 512, 3>>(a, 4, stream); });
}

// Two values of 16 bits an access.
template <class Flow, class Args>
void launch_pairs(const Args& a, cudaStream_t stream) {
  visit_norm<Flow>(a, [&]<class Row>() {
    if constexpr (sizeof(typename Row::Value) == 2) {
      launch_way<Row, Way<InAccesses<2>, ByShuffles, 512, 2>>(a, 8, stream);
    }
  });
}

template <class Flow, class Args>
void launch_unrolled(const Args& a, cudaStream_t stream) {
  visit_norm<Flow>(a, [&]<class Row>() { launch_way<Row, Way<Unrolled, ByShuffles, 512, 2>>(a, Row::kWidth, stream); });
}

// One 128-bit access at a time.
template <class Flow, class Args>
void launch_packs(const Args& a, cudaStream_t stream) {
  visit_norm<Flow>(a, [&]<class Row>() {
    launch_way<Row, Way<InAccesses<Row::kWidth>, ByShuffles, 512, 2>>(a, 2 * Row::kWidth, stream);
  });
}

}  // namespace warpsmith
