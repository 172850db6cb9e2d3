// device/block.h: reductions over blocks of 32 to 1024 threads, two in a row with storage of their own and a third that
// uses the first one's again after a barrier.
#include "device/block.h"

#include <utility>

#include "selftest/reductions.h"

namespace warpsmith::selftest {
namespace {

constexpr int kBlocks = 5;

template <class T>
struct Results {
  T* sums;  // [blocks, threads], as the others
  T* maxima;
  T* minima;
};

template <int threads, class T>
__global__ void block_reduce_kernel(Results<T> to, const T* from) {
  __shared__ BlockReduceStorage<T, threads> first, second;
  const int i = blockIdx.x * threads + threadIdx.x;
  const T value = from[i];
  to.sums[i] = block_reduce<threads>(value, first);
  to.maxima[i] = block_reduce<threads>(value, second, Max{});
  __syncthreads();
  to.minima[i] = block_reduce<threads>(value, first, Min{});
}

template <int threads, class T, class Equal = bool (*)(T, T)>
std::string check(std::string_view kind, const std::vector<T>& values, Equal equal_sums = same<T>) {
  DeviceArray<T> from(values), sums(values.size()), maxima(values.size()), minima(values.size());
  warpsmith::launch<&block_reduce_kernel<threads, T>>({kBlocks, threads}, kStream,
                                                      Results<T>{sums.data(), maxima.data(), minima.data()},
                                                      static_cast<const T*>(from.data()));
  const std::string what = text("block_reduce<", threads, "> ", kind, ' ');
  const auto member = describe_member(threads);
  return first_failure(
      [&] {
        return compare(what + "sum", reduce_groups(values, threads, HostSum{}), sums.values(), member, equal_sums);
      },
      [&] { return check_agreement(what + "sum", sums.values(), threads); },
      [&] { return compare(what + "max", reduce_groups(values, threads, HostMax{}), maxima.values(), member); },
      [&] { return compare(what + "min", reduce_groups(values, threads, HostMin{}), minima.values(), member); });
}

template <int threads>
std::string check_threads() {
  constexpr size_t kValues = size_t{kBlocks} * threads;
  return first_failure(
      [] { return check<threads>("int", whole_numbers<int>(kValues)); },
      [] { return check<threads>("int64", wide_numbers<int64_t>(kValues)); },
      [] { return check<threads>("double", wide_numbers<double>(kValues)); },
      [] { return check<threads>("float of whole numbers", whole_numbers<float>(kValues)); },
      [] { return check<threads>("float of fractions", fractions(kValues), within_sum_error(threads)); });
}

template <int... threads>
std::string check_all(std::integer_sequence<int, threads...>) {
  return first_failure(check_threads<threads>...);
}

std::string run() {
  return check_all(std::integer_sequence<int, 32, 64, 96, 128, 160, 192, 256, 384, 512, 768, 992, 1024>{});
}

const SelfTestEntry entered{"block_reduce", run};

}  // namespace
}  // namespace warpsmith::selftest
