// The reductions along a dimension. A new one is a struct here and its name in `Reducers`, an entry in reduce_dim.h, a
// row in the Python spec and a Triton function.
//
// A reducer folds values, always as floats, into a State: `empty` stands for no values, `take` adds n values of which
// the first is the `first` along the dimension and the others follow `step` apart, `merge` joins two states, `finish`
// turns the last one into the result. `take` and `merge` are the whole order of additions (of a variance that is held in
// registers, see held.cuh, `squared_deviations`): neither the width of a load nor the number of rows enters it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <tuple>
#include <type_traits>

#include "device/moments.h"
#include "device/ptx/math.h"
#include "reduce/reduce_dim/reduce_dim.h"

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
  static constexpr bool finds_position = false;  // returns an int64 position instead of a value
  static constexpr bool shifts = false;          // `empty` wants the first value along the dimension
  static constexpr bool deviates = false;        // knows a faster way with values that are at hand twice: held.cuh

  // What `take` does, for several states that have taken equally many values.
  template <class R, int count, int n>
  __device__ static void take_each(typename R::State (&states)[count], const float (&values)[count][n], uint32_t first,
                                   uint32_t step) {
#pragma unroll
    for (int k = 0; k < count; ++k) R::take(states[k], values[k], first, step);
  }
};

struct Sum : Reducer {
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
  __device__ static float finish(const State& state, float divisor) { return state.sum / divisor; }
};

struct Largest {
  static constexpr float worst = -std::numeric_limits<float>::infinity();
  __device__ static float of(float a, float b) { return ptx::max_nan(a, b); }
  template <class T>
  __device__ static uint32_t of_two(uint32_t a, uint32_t b) {
    return ptx::max_nan_x2<T>(a, b);
  }
  __device__ static bool yields(float a, float b) { return a <= b; }
};

struct Smallest {
  static constexpr float worst = std::numeric_limits<float>::infinity();
  __device__ static float of(float a, float b) { return ptx::min_nan(a, b); }
  template <class T>
  __device__ static uint32_t of_two(uint32_t a, uint32_t b) {
    return ptx::min_nan_x2<T>(a, b);
  }
  __device__ static bool yields(float a, float b) { return a >= b; }
};

// The extreme value; a NaN wins.
template <class Order>
struct Extreme : Reducer {
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

using Amax = Extreme<Largest>;
using Amin = Extreme<Smallest>;

// Where the extreme value stands for the first time; the first NaN wins. Packs are searched: search.cuh.
template <class Order_>
struct Position : Reducer {
  using Order = Order_;
  static constexpr bool finds_position = true;
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct State {
    float value;
    uint32_t at;
  };
  __device__ static bool is_nan(float x) { return x != x; }
  // Without branches.
  __device__ static bool same(float a, float b) { return (a == b) | (is_nan(a) & is_nan(b)); }
  __device__ static bool beats(float a, float b) { return !Order::yields(a, b) && !is_nan(b); }

  __device__ static State empty(float) { return {Order::worst, kNone}; }
  // A thread meets values in order, so an equal one comes too late.
  __device__ static void weigh(State& state, float value, uint32_t at) {
    if (beats(value, state.value)) state = {value, at};
  }
  __device__ static void take(State& state, const float (&value)[1], uint32_t at, uint32_t) {
    if (state.at == kNone) state = {value[0], at};
    weigh(state, value[0], at);
  }
  __device__ static State merge(const State& a, const State& b) {
    const bool earlier = same(a.value, b.value) & (b.at < a.at);
    return beats(b.value, a.value) | earlier ? b : a;
  }
  __device__ static int64_t finish(const State& state, float) { return state.at; }
};

using Argmax = Position<Largest>;
using Argmin = Position<Smallest>;

// Moments of groups of values, joined around their means. Values count from the first one along the dimension: it is as
// large as the others, so their differences are small numbers, and a mean far from zero costs no digits. What a group
// adds to m2 is mostly small, never negative and soon far below m2, so that rounding cuts off more than it adds and a
// long row loses digits: what is cut off is kept.
// Kahan 1965, "Further remarks on reducing truncation errors", https://doi.org/10.1145/363707.363723
struct Var : Reducer {
  static constexpr bool shifts = true, deviates = true;
  struct State {
    Moments moments;  // of values less the shift; the count is exact below 2^24 accesses of a thread
    float cut;        // what rounding has cut off m2
    float shift;
  };

  __device__ static State empty(float shift) { return {{0.0f, 0.0f, 0.0f}, 0.0f, shift}; }
  template <int n>
  __device__ static void take(State& state, const float (&values)[n], uint32_t, uint32_t) {
    join(state, moments(state.shift, values));
  }
  template <class R, int count, int n>
  __device__ static void take_each(State (&states)[count], const float (&values)[count][n], uint32_t, uint32_t) {
    const float before = states[0].moments.count, all = before + n;
    const float share = n * ptx::reciprocal_approx(all), weight = before * share;
#pragma unroll
    for (int k = 0; k < count; ++k) {
      Moments& mine = states[k].moments;
      const Moments group = moments(states[k].shift, values[k]);
      const float delta = group.mean - mine.mean;
      add(states[k], fmaf(delta * weight, delta, group.m2));
      mine.count = all;
      mine.mean = fmaf(delta, share, mine.mean);
    }
  }
  // Of `count` values their sum less `pivot` each, and the sum of the squares of that. The pivot is one of the values:
  // what its square takes of m2 is then at most `count` times as much as m2. For 16-bit values: what is cut off m2 is lost.
  __device__ static void take_sums(State& state, float pivot, float count, float sum, float squares) {
    const float mean = sum / count;
    float m2 = fmaf(-mean, sum, squares);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (squares == kInfinity && fabsf(sum) < kInfinity) m2 = kInfinity;  // of finite values
    state.moments = warpsmith::merge(state.moments, {count, (pivot - state.shift) + mean, m2});
  }
  __device__ static State merge(const State& a, const State& b) {
    State both = a;
    join(both, b.moments);
    both.cut += b.cut;
    return both;
  }
  __device__ static float finish(const State& state, float divisor) {
    const float m2 = state.moments.m2;  // infinite where it has overflowed, and then nothing but NaN was cut off
    return (fabsf(m2) <= std::numeric_limits<float>::max() ? m2 + state.cut : m2) / divisor;
  }

 private:
  // Several chains of additions where there are many values.
  template <int n>
  __device__ static Moments moments(float shift, const float (&values)[n]) {
    constexpr int kChains = n % 4 == 0 ? 4 : 1;
    float shifted[n], means[kChains]{}, squares[kChains]{};
#pragma unroll
    for (int i = 0; i < n; ++i) {
      shifted[i] = values[i] - shift;
      means[i % kChains] = fmaf(shifted[i], 1.0f / n, means[i % kChains]);
    }
    const float mean = add_up(means);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float deviation = shifted[i] - mean;
      squares[i % kChains] = fmaf(deviation, deviation, squares[i % kChains]);
    }
    return {n, mean, add_up(squares)};
  }
  __device__ static void join(State& state, const Moments& group) {
    const float before = state.moments.m2;
    state.moments.m2 = 0.0f;
    state.moments = warpsmith::merge(state.moments, group);
    const float added = state.moments.m2;
    state.moments.m2 = before;
    add(state, added);
  }
  __device__ static void add(State& state, float m2) {
    const float before = state.moments.m2;
    state.moments.m2 = before + m2;
    state.cut += m2 - (state.moments.m2 - before);
  }
};

}  // namespace warpsmith::reducers

namespace warpsmith {

// In the order of `Reduction`.
using Reducers = std::tuple<reducers::Sum, reducers::Mean, reducers::Amax, reducers::Amin, reducers::Argmax,
                            reducers::Argmin, reducers::Var>;
static_assert(std::tuple_size_v<Reducers> == std::size(kReductions));
static_assert(sizeof(reducers::Var::State) <= kMostStateBytes, "the largest of all states");

}  // namespace warpsmith
