// What the tests of warp, block and cluster reductions share: inputs, the host's answer, and when a sum is right.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "selftest/selftest.h"

namespace warpsmith::selftest {

// Small whole numbers, whose sums are exact in every order and dtype.
template <class T>
std::vector<T> whole_numbers(size_t size) {
  Random random(3);
  std::vector<T> values(size);
  for (T& value : values) value = static_cast<T>(random.integer(-1000, 1000));
  return values;
}

// Numbers that need both halves of 64 bits, and whose sums are exact all the same.
template <class T>
std::vector<T> wide_numbers(size_t size) {
  constexpr T kFactor = std::is_same_v<T, double> ? T(1 + 0x1p-30) : T(int64_t{1} << 33);
  std::vector<T> values = whole_numbers<T>(size);
  for (T& value : values) value *= kFactor;
  return values;
}

inline std::vector<float> fractions(size_t size) {
  Random random(4);
  std::vector<float> values(size);
  for (float& value : values) value = random.uniform(-1.0f, 1.0f);
  return values;
}

// Fractions among infinities and the extremes of the format.
inline std::vector<float> extremes(size_t size) {
  constexpr float kLargest = std::numeric_limits<float>::max(), kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {kInfinity, -kInfinity, kLargest, -kLargest, 0x1p-149f, -0x1p-149f};
  std::vector<float> values = fractions(size);
  for (size_t i = 0; i < size; i += 37) values[i] = kSpecial[i / 37 % std::size(kSpecial)];
  return values;
}

struct HostSum {
  double operator()(double a, double b) const { return a + b; }
};

struct HostMax {
  double operator()(double a, double b) const { return std::max(a, b); }
};

// A reduction that no kernel asks for: any functor will do.
struct Min {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

struct HostMin {
  double operator()(double a, double b) const { return std::min(a, b); }
};

// Every element replaced by the reduction of its group of `group` neighbours, computed in double.
template <class T, class Fold>
std::vector<T> reduce_groups(const std::vector<T>& values, int group, Fold fold) {
  std::vector<T> results(values.size());
  for (size_t start = 0; start < values.size(); start += group) {
    double result = values[start];
    for (int i = 1; i < group; ++i) result = fold(result, values[start + i]);
    std::fill_n(results.begin() + start, group, static_cast<T>(result));
  }
  return results;
}

// No value passes through more than kDepth additions on its way into a sum (31 over the warps of a block after 5 within
// a warp is the most), and each rounds by 2^-24 relative to at most `count`, the values being at most 1.
inline auto within_sum_error(int count) {
  constexpr float kDepth = 36.0f;
  const float bound = kDepth * static_cast<float>(count) * 0x1p-24f;
  return [bound](float a, float b) { return std::fabs(a - b) <= bound; };
}

inline auto describe_member(int group) {
  return [group](size_t i) { return text("member ", i % group, " of group ", i / group); };
}

// Every member of a group holds the same bits.
template <class T>
std::string check_agreement(std::string_view what, const std::vector<T>& got, int group) {
  std::vector<T> leaders(got.size());
  for (size_t i = 0; i < got.size(); ++i) leaders[i] = got[i / group * group];
  return compare(text(what, ": members of a group disagree"), leaders, got, describe_member(group));
}

}  // namespace warpsmith::selftest
