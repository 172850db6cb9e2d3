// device/warp.h: sums, maxima and minima over every group size, of integers and floats; every lane must hold the result.
#include "device/warp.h"

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
        [&] { return check<lanes, Max>("float max", special, HostMax{}); },
        [&] { return check<lanes, Min>("float min", special, HostMin{}); }, [&] { return check_lanes<2 * lanes>(); });
  }
  return "";
}

std::string run() { return check_lanes(); }

const SelfTestEntry entered{"warp_reduce", run};

}  // namespace
}  // namespace warpsmith::selftest
