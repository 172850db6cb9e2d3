// device/fast_divide.h: quotients around every multiple that could round the wrong way, against the host's division.
#include "device/fast_divide.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256;
constexpr uint64_t kFastLimit = uint64_t{1} << 31;

__global__ void fast_divide_kernel(uint64_t* to, const FastDivide* divisors, const uint64_t* numerators, int pairs) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < pairs) to[i] = divisors[i].quotient(numerators[i]);
}

std::vector<uint64_t> all_divisors(Random& random) {
  std::vector<uint64_t> divisors;
  for (uint64_t d = 1; d <= 300; ++d) divisors.push_back(d);
  for (int k = 1; k < 64; ++k) {
    const uint64_t power = uint64_t{1} << k;
    divisors.insert(divisors.end(), {power - 1, power, power + 1, power / 2 * 3});
  }
  divisors.insert(divisors.end(), {641, 14336, 1000000007, ~uint64_t{0}});
  for (int i = 0; i < 500; ++i) {
    divisors.push_back(1 + random.word() % (kFastLimit - 1));
    divisors.push_back(random.bits() | 1);
  }
  return divisors;
}

// Where a quotient changes, at small multiples of d and at the largest below each limit.
std::vector<uint64_t> numerators_for(uint64_t d, Random& random) {
  std::vector<uint64_t> numerators{0, 1, 2, 3};
  for (const uint64_t multiple : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{7}, uint64_t{1000}}) {
    numerators.insert(numerators.end(), {multiple * d - 1, multiple * d, multiple * d + 1});
  }
  for (const uint64_t limit : {kFastLimit, uint64_t{1} << 32, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}}) {
    const uint64_t largest = limit / d * d;
    numerators.insert(numerators.end(), {limit - 1, limit, limit + 1, largest - 1, largest, largest + 1});
  }
  for (int i = 0; i < 16; ++i) {
    numerators.push_back(random.word() % kFastLimit);
    numerators.push_back(random.word() % kFastLimit / d * d - 1);
    numerators.push_back(random.bits());
  }
  return numerators;
}

std::string run() {
  Random random(2);
  std::vector<FastDivide> divisors;
  std::vector<uint64_t> numerators, expected;
  for (const uint64_t d : all_divisors(random)) {
    const FastDivide divide(d);
    for (const uint64_t n : numerators_for(d, random)) {
      divisors.push_back(divide);
      numerators.push_back(n);
      expected.push_back(n / d);
    }
  }
  const int pairs = static_cast<int>(expected.size());
  DeviceArray<FastDivide> divisors_on_gpu(divisors);
  DeviceArray<uint64_t> numerators_on_gpu(numerators), quotients(expected.size());
  const dim3 grid((pairs + kThreads - 1) / kThreads);
  warpsmith::launch<&fast_divide_kernel>({grid, kThreads}, kStream, quotients.data(),
                                         static_cast<const FastDivide*>(divisors_on_gpu.data()),
                                         static_cast<const uint64_t*>(numerators_on_gpu.data()), pairs);
  return compare("FastDivide", expected, quotients.values(),
                 [&](size_t i) { return text(numerators[i], " / ", divisors[i].divisor); });
}

const SelfTestEntry entered{"fast_divide", run};

}  // namespace
}  // namespace warpsmith::selftest
