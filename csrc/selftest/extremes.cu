// device/ptx/max_nan.h and min_nan.h: every pair of zeros, NaN, infinities, the ends of the format and ordinary values.
#include "device/ptx/max_nan.h"
#include "device/ptx/min_nan.h"

#include <limits>

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256;

struct Larger {
  static constexpr const char* name = "max_nan";
  __device__ static float apply(float a, float b) { return ptx::max_nan(a, b); }
  static bool beats(float a, float b) { return a > b; }
};

struct Smaller {
  static constexpr const char* name = "min_nan";
  __device__ static float apply(float a, float b) { return ptx::min_nan(a, b); }
  static bool beats(float a, float b) { return a < b; }
};

template <class Function>
__global__ void extremes_kernel(float* to, const float* a, const float* b, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) to[i] = Function::apply(a[i], b[i]);
}

std::vector<float> points() {
  using Limits = std::numeric_limits<float>;
  std::vector<float> values{
      0.0f, 1.0f, Limits::infinity(), Limits::max(), Limits::min(), Limits::denorm_min(), Limits::quiet_NaN()};
  Random random(11);
  for (int i = 0; i < 20; ++i) values.push_back(random.uniform(0.0f, 100.0f));
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

// Zeros of either sign are equal.
bool right(float expected, float got) { return expected == got || (expected != expected && got != got); }

template <class Function>
std::string check() {
  std::vector<float> a, b, expected;
  for (const float x : points()) {
    for (const float y : points()) {
      a.push_back(x);
      b.push_back(y);
      const bool nan = x != x || y != y;
      expected.push_back(nan ? std::numeric_limits<float>::quiet_NaN() : Function::beats(x, y) ? x : y);
    }
  }
  const int size = static_cast<int>(a.size());
  DeviceArray<float> first(a), second(b), to(a.size());
  warpsmith::launch<&extremes_kernel<Function>>({dim3((size + kThreads - 1) / kThreads), kThreads}, kStream, to.data(),
                                                static_cast<const float*>(first.data()),
                                                static_cast<const float*>(second.data()), size);
  return compare(
      Function::name, expected, to.values(), [&](size_t i) { return text("of ", show(a[i]), " and ", show(b[i])); },
      right);
}

std::string run() {
  return first_failure([] { return check<Larger>(); }, [] { return check<Smaller>(); });
}

const SelfTestEntry entered{"extremes", run};

}  // namespace
}  // namespace warpsmith::selftest
