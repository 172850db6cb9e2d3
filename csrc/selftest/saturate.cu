// device/saturate.h: floats at every boundary of the fp8 formats, far beyond them and at random, scalar and by vectors.
// What lies within the format must be what convert.h makes of it; what lies beyond, the largest value.
#include "device/saturate.h"

#include <cmath>
#include <limits>

#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16;  // of the widest vector; every array is a multiple of it

template <class T, int n>
__global__ void saturate_kernel(T* to, const float* from, int vectors) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  float in[n];
  Vec<T, n> out;
#pragma unroll
  for (int k = 0; k < n; ++k) in[k] = from[i * n + k];
  from_float_saturating(out, in);
  store(to + i * n, out);
}

template <class T>
constexpr float kLargest = std::is_same_v<T, e4m3> ? 448.0f : 57344.0f;

template <class T>
std::vector<float> inputs() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> values{0.0f,
                            -0.0f,
                            kInfinity,
                            -kInfinity,
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min()};
  // around every power of two, and around the end of the format
  for (int exponent = -30; exponent <= 30; ++exponent) {
    for (int step = 0; step < 64; ++step)
      values.push_back(std::ldexp(1.0f + static_cast<float>(step) / 64.0f, exponent));
  }
  for (const float edge : {kLargest<T>, Fp8Format<T>::overflow}) {
    values.insert(values.end(), {edge, std::nextafter(edge, 0.0f), std::nextafter(edge, kInfinity)});
  }
  Random random(1);
  for (int i = 0; i < 4096; ++i) values.push_back(random.uniform(-2.0f, 2.0f) * kLargest<T>);
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  while (values.size() % kLanes != 0) values.push_back(1.0f);
  return values;
}

template <class T, int n = 1>
std::string check(const std::vector<float>& values, DeviceArray<float>& from, const std::vector<uint8_t>& expected) {
  if constexpr (n <= kLanes) {
    DeviceArray<uint8_t> to(values.size());
    const int vectors = static_cast<int>(values.size()) / n;
    warpsmith::launch<&saturate_kernel<T, n>>({static_cast<unsigned>((vectors + kThreads - 1) / kThreads), kThreads},
                                              kStream, reinterpret_cast<T*>(to.data()),
                                              static_cast<const float*>(from.data()), vectors);
    const std::string what = text("from_float_saturating, ", format_of<T>().name, "x", n);
    const auto value = [&](size_t i) { return show(values[i]); };
    // The sign of a NaN is nobody's.
    const auto equal = [](uint8_t a, uint8_t b) {
      const auto is_nan = [](uint8_t code) { return (code & 0x7f) > (std::is_same_v<T, e4m3> ? 0x7e : 0x7c); };
      return a == b || (is_nan(a) && is_nan(b));
    };
    return first_failure([&] { return compare(what, expected, to.values(), value, equal); },
                         [&] { return check<T, 2 * n>(values, from, expected); });
  }
  return "";
}

template <class T>
std::string check_format() {
  const std::vector<float> values = inputs<T>();
  std::vector<uint8_t> expected;
  for (const float value : values) {
    const bool beyond = std::fabs(value) > kLargest<T>;
    expected.push_back(encode_fp8_portable<T>(beyond ? std::copysign(kLargest<T>, value) : value));
  }
  DeviceArray<float> from(values);
  return check<T>(values, from, expected);
}

std::string run() { return first_failure(check_format<e4m3>, check_format<e5m2>); }

const SelfTestEntry entered{"from_float_saturating", run};

}  // namespace
}  // namespace warpsmith::selftest
