// The reductions along a dimension. A new one is a struct here, its name in `Reducers`, a row in the Python spec and a
// Triton function.
//
// A reducer folds values, always as floats, into a State: `empty` stands for no values, `take` adds n values of which
// the first is the `first` along the dimension and the others follow `step` apart, `merge` joins two states, `finish`
// turns the last one into the answer. `take` and `merge` are the whole order of additions: neither the width of a load
// nor the number of rows enters it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>

#include "device/ptx/math.h"
#include "device/ptx/minmax.h"

namespace warpsmith::reducers {

// Pairs first: the chain of dependent additions is log2(n) long.
template <int n, class Join>
__device__ __forceinline__ float join(const float (&values)[n], Join join_two) {
  static_assert((n & (n - 1)) == 0, "a tree of pairs");
  float tree[n];
#pragma unroll
  for (int i = 0; i < n; ++i) tree[i] = values[i];
#pragma unroll
  for (int half = n / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) tree[i] = join_two(tree[i], tree[i + half]);
  }
  return tree[0];
}

template <int n>
__device__ __forceinline__ float add_up(const float (&values)[n]) {
  return join(values, [](float a, float b) { return a + b; });
}

// What most reducers have in common.
struct Reducer {
  static constexpr bool finds_position = false;  // answers with an int64 position instead of a value
  static constexpr bool takes_nothing = true;    // has an answer for no values at all
  static constexpr bool shifts = false;          // `empty` wants the first value along the dimension
  static double divisor(int64_t, int64_t) { return 1.0; }
};

struct Sum : Reducer {
  static constexpr const char* name = "sum";
  struct State {
    float sum;
  };
  __device__ static State empty(float) { return {0.0f}; }
  template <int n>
  __device__ static void take(State& state, const float (&values)[n], uint32_t, uint32_t) {
    state.sum += add_up(values);
  }
  __device__ static State merge(const State& a, const State& b) { return {a.sum + b.sum}; }
  __device__ static float finish(const State& state, float) { return state.sum; }
};

struct Mean : Sum {
  static constexpr const char* name = "mean";
  static double divisor(int64_t n, int64_t) { return static_cast<double>(n); }
  __device__ static float finish(const State& state, float divisor) { return state.sum / divisor; }
};

struct Largest {
  static constexpr float worst = -std::numeric_limits<float>::infinity();
  __device__ static float of(float a, float b) { return ptx::max_nan(a, b); }
  __device__ static bool beats(float a, float b) { return a > b; }
};

struct Smallest {
  static constexpr float worst = std::numeric_limits<float>::infinity();
  __device__ static float of(float a, float b) { return ptx::min_nan(a, b); }
  __device__ static bool beats(float a, float b) { return a < b; }
};

// The extreme value; a NaN wins.
template <class Order>
struct Extreme : Reducer {
  static constexpr bool takes_nothing = false;
  struct State {
    float value;
  };
  __device__ static State empty(float) { return {Order::worst}; }
  template <int n>
  __device__ static void take(State& state, const float (&values)[n], uint32_t, uint32_t) {
    const float best = join(values, [](float a, float b) { return Order::of(a, b); });
    state.value = Order::of(state.value, best);
  }
  __device__ static State merge(const State& a, const State& b) { return {Order::of(a.value, b.value)}; }
  __device__ static float finish(const State& state, float) { return state.value; }
};

struct Amax : Extreme<Largest> {
  static constexpr const char* name = "amax";
};

struct Amin : Extreme<Smallest> {
  static constexpr const char* name = "amin";
};

// Where the extreme value stands for the first time; the first NaN wins.
template <class Order>
struct Position : Reducer {
  static constexpr bool finds_position = true, takes_nothing = false;
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct State {
    float value;
    uint32_t at;
  };
  __device__ static bool is_nan(float x) { return x != x; }
  __device__ static bool beats(float a, float b) { return Order::beats(a, b) || (is_nan(a) && !is_nan(b)); }

  __device__ static State empty(float) { return {Order::worst, kNone}; }
  // A thread meets its values in order, so an equal one comes too late. Most packs hold nothing better than what the
  // thread has seen, which one comparison tells.
  template <int n>
  __device__ static void take(State& state, const float (&values)[n], uint32_t first, uint32_t step) {
    const float best = join(values, [](float a, float b) { return Order::of(a, b); });
    if (!beats(best, state.value) && state.at != kNone) return;
    state.value = best;
#pragma unroll
    for (int i = n - 1; i >= 0; --i) {
      // Where the best is NaN, no value equals it; where it is not, no value is NaN.
      if (values[i] == best || is_nan(values[i])) state.at = first + i * step;
    }
  }
  __device__ static State merge(const State& a, const State& b) {
    const bool same = a.value == b.value || (is_nan(a.value) && is_nan(b.value));
    return beats(b.value, a.value) || (same && b.at < a.at) ? b : a;
  }
  __device__ static int64_t finish(const State& state, float) { return state.at; }
};

struct Argmax : Position<Largest> {
  static constexpr const char* name = "argmax";
};

struct Argmin : Position<Smallest> {
  static constexpr const char* name = "argmin";
};

// Mean and squared deviations of groups of values, joined by the formula of Chan, Golub and LeVeque 1983, "Algorithms
// for Computing the Sample Variance". Values count from the first one along the dimension: it is as large as the others,
// so their differences are small numbers, and a mean far from zero costs no digits.
struct Var : Reducer {
  static constexpr const char* name = "var";
  static constexpr bool shifts = true;
  struct State {
    float mean;   // less the shift
    float m2;     // sum of squared deviations from the mean
    float count;  // exact below 2^24 accesses of a thread
    float shift;
  };
  static double divisor(int64_t n, int64_t correction) { return n > correction ? static_cast<double>(n - correction) : 0.0; }

  __device__ static State empty(float shift) { return {0.0f, 0.0f, 0.0f, shift}; }
  template <int n>
  __device__ static void take(State& state, const float (&values)[n], uint32_t, uint32_t) {
    State group{0.0f, 0.0f, static_cast<float>(n), state.shift};
    float centred[n];
#pragma unroll
    for (int i = 0; i < n; ++i) centred[i] = values[i] - state.shift;
    group.mean = add_up(centred) * (1.0f / n);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float deviation = centred[i] - group.mean;
      group.m2 = fmaf(deviation, deviation, group.m2);
    }
    state = merge(state, group);
  }
  __device__ static State merge(const State& a, const State& b) {
    const float count = a.count + b.count;
    const float share = b.count == 0.0f ? 0.0f : b.count * ptx::reciprocal_approx(count);
    const float apart = b.mean - a.mean;
    const float moved = apart * share;
    return {a.mean + moved, fmaf(apart * a.count, moved, a.m2 + b.m2), count, a.shift};
  }
  __device__ static float finish(const State& state, float divisor) { return state.m2 / divisor; }
};

}  // namespace warpsmith::reducers

namespace warpsmith {

using Reducers = std::tuple<reducers::Sum, reducers::Mean, reducers::Amax, reducers::Amin, reducers::Argmax,
                            reducers::Argmin, reducers::Var>;

// Bytes of the largest State.
inline constexpr int64_t kMostStateBytes = sizeof(reducers::Var::State);

}  // namespace warpsmith
