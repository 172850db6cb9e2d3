// device/warp.h: sums, maxima and minima over every group size, of 32- and 64-bit numbers, several sums at once, and with
// device/add.h sums of 16-bit values and pairs; every lane must hold the result.
#include "device/warp.h"

#include "device/add.h"
#include "device/convert.h"
#include "selftest/reductions.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 8, kValues = kThreads * kBlocks;

template <int lanes, class T, class Reduce>
__global__ void warp_reduce_kernel(T* to, const T* from) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = warp_reduce<lanes>(from[i], Reduce{});
}

template <int lanes, class Reduce, class T, class Fold, class Equal = bool (*)(T, T)>
std::string check(std::string_view reduction, const std::vector<T>& values, Fold fold, Equal equal = same<T>) {
  DeviceArray<T> from(values), to(values.size());
  warpsmith::launch<&warp_reduce_kernel<lanes, T, Reduce>>({kBlocks, kThreads}, kStream, to.data(),
                                                           static_cast<const T*>(from.data()));
  const std::string what = text("warp_reduce<", lanes, "> ", reduction);
  const std::vector<T> got = to.values();
  return first_failure(
      [&] { return compare(what, reduce_groups(values, lanes, fold), got, describe_member(lanes), equal); },
      [&] { return check_agreement(what, got, lanes); });
}

// Sums of 16-bit values, alone and as pairs with their negatives.
template <int lanes, class A>
__global__ void warp_add_kernel(float* to, const float* from) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = to_float(warp_reduce<lanes>(from_float<A>(from[i]), Add{}));
}

template <int lanes, class Pair>
__global__ void warp_add_pairs_kernel(float* to, const float* from) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  Pair pair;
  pair.x = from_float<decltype(pair.x)>(from[i]);
  pair.y = from_float<decltype(pair.y)>(-from[i]);
  pair = warp_reduce<lanes>(pair, Add{});
  const float low = to_float(pair.x), high = to_float(pair.y);
  to[i] = low == -high ? low : __int_as_float(0x7fffffff);  // NaN, which no sum is
}

// n sums at once: each must have the bits of warp_reduce.
template <int lanes, int n>
__global__ void warp_reduce_all_kernel(float* to, const float* from) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float values[n], expected[n];
#pragma unroll
  for (int k = 0; k < n; ++k) {
    values[k] = from[i] / static_cast<float>(2 * k + 1);
    expected[k] = warp_reduce<lanes>(values[k]);
  }
  warp_reduce_all<lanes>(values);
  bool same = true;
#pragma unroll
  for (int k = 0; k < n; ++k) same = same && values[k] == expected[k];
  to[i] = same ? values[0] : __int_as_float(0x7fffffff);  // NaN, which no sum is
}

// Whole numbers whose sums both 16-bit formats hold.
std::vector<float> few_bits() {
  std::vector<float> values = whole_numbers<float>(kValues);
  for (float& value : values) value = std::fmod(value, 5.0f);
  return values;
}

template <auto kernel>
std::string check_adds(int lanes, std::string_view what) {
  const std::vector<float> values = few_bits();
  DeviceArray<float> from(values), to(values.size());
  warpsmith::launch<kernel>({kBlocks, kThreads}, kStream, to.data(), static_cast<const float*>(from.data()));
  return compare(text("warp_reduce<", lanes, "> ", what), reduce_groups(values, lanes, HostSum{}), to.values(),
                 describe_member(lanes));
}

template <int lanes, int n = 1>
std::string check_several() {
  if constexpr (n <= lanes && n <= 16) {
    return first_failure([&] { return check_adds<&warp_reduce_all_kernel<lanes, n>>(lanes, text(n, " sums at once")); },
                         check_several<lanes, 2 * n>);
  }
  return "";
}

template <int lanes = 1>
std::string check_lanes() {
  if constexpr (lanes <= kWarp) {
    const auto ints = whole_numbers<int>(kValues);
    const auto special = extremes(kValues);
    return first_failure(
        [&] { return check<lanes, Sum>("int sum", ints, HostSum{}); },
        [&] { return check<lanes, Max>("int max", ints, HostMax{}); },
        [&] { return check<lanes, Min>("int min", ints, HostMin{}); },
        [&] { return check<lanes, Sum>("float sum of whole numbers", whole_numbers<float>(kValues), HostSum{}); },
        [&] {
          return check<lanes, Sum>("float sum of fractions", fractions(kValues), HostSum{}, within_sum_error(lanes));
        },
        [&] { return check<lanes, Sum>("int64 sum", wide_numbers<int64_t>(kValues), HostSum{}); },
        [&] { return check<lanes, Max>("int64 max", wide_numbers<int64_t>(kValues), HostMax{}); },
        [&] { return check<lanes, Sum>("double sum", wide_numbers<double>(kValues), HostSum{}); },
        [&] { return check<lanes, Min>("double min", wide_numbers<double>(kValues), HostMin{}); }, check_several<lanes>,
        [&] { return check_adds<&warp_add_kernel<lanes, f16>>(lanes, "f16 sum"); },
        [&] { return check_adds<&warp_add_kernel<lanes, bf16>>(lanes, "bf16 sum"); },
        [&] { return check_adds<&warp_add_pairs_kernel<lanes, __half2>>(lanes, "sum of f16 pairs"); },
        [&] { return check_adds<&warp_add_pairs_kernel<lanes, __nv_bfloat162>>(lanes, "sum of bf16 pairs"); },
        [&] { return check<lanes, Max>("float max", special, HostMax{}); },
        [&] { return check<lanes, Min>("float min", special, HostMin{}); }, [&] { return check_lanes<2 * lanes>(); });
  }
  return "";
}

std::string run() { return check_lanes(); }

const SelfTestEntry entered{"warp_reduce", run};

}  // namespace
}  // namespace warpsmith::selftest
