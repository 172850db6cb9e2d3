// device/ptx/math.h, minima and maxima of one value and of two 16-bit ones: every pair of zeros, NaN, infinities, the ends of
// the format and ordinary values.
#include "device/ptx/math.h"

#include <bit>
#include <limits>
#include <type_traits>

#include "device/convert.h"
#include "device/vec.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256;

struct Larger {
  static constexpr const char* name = "max_nan";
  __device__ static float apply(float a, float b) { return ptx::max_nan(a, b); }
  template <class T>
  __device__ static uint32_t apply_x2(uint32_t a, uint32_t b) {
    return ptx::max_nan_x2<T>(a, b);
  }
  static bool beats(float a, float b) { return a > b; }
};

struct Smaller {
  static constexpr const char* name = "min_nan";
  __device__ static float apply(float a, float b) { return ptx::min_nan(a, b); }
  template <class T>
  __device__ static uint32_t apply_x2(uint32_t a, uint32_t b) {
    return ptx::min_nan_x2<T>(a, b);
  }
  static bool beats(float a, float b) { return a < b; }
};

template <class Function>
__global__ void extremes_kernel(float* to, const float* a, const float* b, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) to[i] = Function::apply(a[i], b[i]);
}

// Of values rounded to T: those of an even and of the odd place after it in one word. Even `size`.
template <class Function, class T>
__global__ void extremes_x2_kernel(float* to, const float* a, const float* b, int size) {
  const int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= size) return;
  const auto word = [i](const float* from) {
    return std::bit_cast<uint32_t>(Vec<T, 2>{from_float<T>(from[i]), from_float<T>(from[i + 1])});
  };
  const auto two = std::bit_cast<Vec<T, 2>>(Function::template apply_x2<T>(word(a), word(b)));
  to[i] = to_float(two[0]);
  to[i + 1] = to_float(two[1]);
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

struct Pairs {
  std::vector<float> a, b, expected;
};

template <class Function>
Pairs pairs(const std::vector<float>& values) {
  Pairs all;
  for (const float x : values) {
    for (const float y : values) {
      all.a.push_back(x);
      all.b.push_back(y);
      const bool nan = x != x || y != y;
      all.expected.push_back(nan ? std::numeric_limits<float>::quiet_NaN() : Function::beats(x, y) ? x : y);
    }
  }
  return all;
}

template <class Function>
std::string check() {
  const Pairs of = pairs<Function>(points());
  const int size = static_cast<int>(of.a.size());
  DeviceArray<float> first(of.a), second(of.b), to(of.a.size());
  warpsmith::launch<&extremes_kernel<Function>>({dim3((size + kThreads - 1) / kThreads), kThreads}, kStream, to.data(),
                                                static_cast<const float*>(first.data()),
                                                static_cast<const float*>(second.data()), size);
  return compare(
      Function::name, of.expected, to.values(),
      [&](size_t i) { return text("of ", show(of.a[i]), " and ", show(of.b[i])); }, right);
}

template <class T>
float rounded(float x) {
  if constexpr (std::is_same_v<T, f16>) {
    return __half2float(__float2half(x));
  } else {
    return __bfloat162float(__float2bfloat16(x));
  }
}

// Values that T represents, so that what is expected is one of them.
template <class Function, class T>
std::string check_x2(const char* dtype) {
  std::vector<float> values;
  for (const float x : points()) values.push_back(rounded<T>(x));
  const Pairs of = pairs<Function>(values);
  const int size = static_cast<int>(of.a.size());
  DeviceArray<float> first(of.a), second(of.b), to(of.a.size());
  warpsmith::launch<&extremes_x2_kernel<Function, T>>({dim3((size / 2 + kThreads - 1) / kThreads), kThreads}, kStream,
                                                      to.data(), static_cast<const float*>(first.data()),
                                                      static_cast<const float*>(second.data()), size);
  return compare(
      text(Function::name, "_x2 ", dtype), of.expected, to.values(),
      [&](size_t i) { return text("of ", show(of.a[i]), " and ", show(of.b[i])); }, right);
}

std::string run() {
  return first_failure([] { return check<Larger>(); }, [] { return check<Smaller>(); },
                       [] { return check_x2<Larger, f16>("f16"); }, [] { return check_x2<Larger, bf16>("bf16"); },
                       [] { return check_x2<Smaller, f16>("f16"); }, [] { return check_x2<Smaller, bf16>("bf16"); });
}

const SelfTestEntry entered{"extremes", run};

}  // namespace
}  // namespace warpsmith::selftest
