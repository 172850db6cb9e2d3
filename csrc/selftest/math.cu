// device/ptx/math.h: the special-function unit against double, within the errors that the header states; all corners,
// every binade, subnormals, and random points.
#include "device/ptx/math.h"

#include <cmath>
#include <limits>

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256;
constexpr int kRandom = 100000;
constexpr double kSmallestNormal = 0x1p-126;
constexpr double kLargest = std::numeric_limits<float>::max();

struct Exp2 {
  static constexpr bool flushes = false;
  __device__ static float apply(float x) { return ptx::exp2_approx(x); }
};

struct Exp2Ftz {
  static constexpr bool flushes = true;
  __device__ static float apply(float x) { return ptx::exp2_approx_ftz(x); }
};

struct Reciprocal {
  static constexpr bool flushes = false;
  __device__ static float apply(float x) { return ptx::reciprocal_approx(x); }
};

struct ReciprocalFtz {
  static constexpr bool flushes = true;
  __device__ static float apply(float x) { return ptx::reciprocal_approx_ftz(x); }
};

template <class Function>
__global__ void math_kernel(float* to, const float* from, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) to[i] = Function::apply(from[i]);
}

// Corners, then every binade at its ends, its middle and at random.
std::vector<float> points() {
  Random random(7);
  std::vector<float> values;
  for (uint32_t exponent = 0; exponent <= 255; ++exponent) {
    std::vector<uint32_t> mantissas{0, 1, 2, 0x3fffff, 0x400000, 0x400001, 0x7ffffe, 0x7fffff};
    for (int i = 0; i < 32; ++i) mantissas.push_back(random.word() & 0x7fffff);
    for (const uint32_t mantissa : mantissas) {
      const uint32_t bits = exponent << 23 | mantissa;
      values.push_back(std::bit_cast<float>(bits));
      values.push_back(std::bit_cast<float>(0x80000000u | bits));
    }
  }
  for (int i = 0; i < kRandom; ++i) values.push_back(std::bit_cast<float>(random.word()));
  return values;
}

// Where 2^x is finite and not zero, and around both ends.
std::vector<float> exponents() {
  Random random(8);
  std::vector<float> values = points();
  for (int i = 0; i < kRandom; ++i) values.push_back(random.uniform(-152.0f, 130.0f));
  for (int i = 0; i < kRandom / 4; ++i) values.push_back(random.uniform(-1.0f, 1.0f));
  for (int whole = -152; whole <= 130; ++whole) {
    const float x = static_cast<float>(whole);
    values.insert(values.end(), {x, x + 0.5f, std::nextafterf(x, -HUGE_VALF), std::nextafterf(x, HUGE_VALF)});
  }
  return values;
}

template <class Function, class Exact, class Equal>
std::string check(std::string_view what, const std::vector<float>& inputs, Exact exact, Equal equal) {
  const int size = static_cast<int>(inputs.size());
  DeviceArray<float> from(inputs), to(inputs.size());
  warpsmith::launch<&math_kernel<Function>>({dim3((size + kThreads - 1) / kThreads), kThreads}, kStream, to.data(),
                                            static_cast<const float*>(from.data()), size);
  std::vector<double> expected, got;
  for (const float x : inputs) expected.push_back(exact(static_cast<double>(x)));
  for (const float y : to.values()) got.push_back(y);
  return compare(what, expected, got, [&](size_t i) { return text("x = ", show(inputs[i])); }, equal);
}

// Relative error 2^-22. The instruction squares 2^(x/2) where the result is subnormal: twice that error, and half of
// the smallest subnormal for rounding.
template <bool flushes>
bool exp2_right(double expected, double got) {
  constexpr double kError = 0x1p-22;
  if (std::isnan(expected)) return std::isnan(got);
  if (expected * (1 - kError) > kLargest) return std::isinf(got) && got > 0;
  if (expected * (1 + kError) > kLargest && std::isinf(got)) return got > 0;
  if (flushes && expected < kSmallestNormal * (1 - kError)) return got == 0;
  if (flushes && expected < kSmallestNormal * (1 + kError) && got == 0) return true;
  const double bound = expected < kSmallestNormal ? 2 * kError * expected + 0x1p-150 : kError * expected;
  return std::fabs(got - expected) <= bound;
}

template <bool flushes>
double exact_reciprocal(double x) {
  return flushes && std::fabs(x) < kSmallestNormal ? 1.0 / std::copysign(0.0, x) : 1.0 / x;
}

// The nearest float or one of its neighbours; poles, infinities and signs exactly.
template <bool flushes>
bool reciprocal_right(double expected, double got) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected) || expected == 0) return got == expected && std::signbit(got) == std::signbit(expected);
  const float nearest = static_cast<float>(expected);
  for (const float towards : {nearest, 0.0f, std::copysign(HUGE_VALF, nearest)}) {
    float candidate = std::nextafterf(nearest, towards);
    if (flushes && std::fabs(candidate) < kSmallestNormal) candidate = std::copysign(0.0f, candidate);
    if (got == candidate && std::signbit(got) == std::signbit(candidate)) return true;
  }
  return false;
}

template <class Function>
std::string check_exp2(std::string_view what) {
  return check<Function>(what, exponents(), [](double x) { return std::exp2(x); }, exp2_right<Function::flushes>);
}

template <class Function>
std::string check_reciprocal(std::string_view what) {
  return check<Function>(what, points(), exact_reciprocal<Function::flushes>, reciprocal_right<Function::flushes>);
}

std::string run_exp2() {
  return first_failure([] { return check_exp2<Exp2>("exp2_approx"); },
                       [] { return check_exp2<Exp2Ftz>("exp2_approx_ftz"); });
}

std::string run_reciprocal() {
  return first_failure([] { return check_reciprocal<Reciprocal>("reciprocal_approx"); },
                       [] { return check_reciprocal<ReciprocalFtz>("reciprocal_approx_ftz"); });
}

const SelfTestEntry exp2_entered{"exp2", run_exp2};
const SelfTestEntry reciprocal_entered{"reciprocal", run_reciprocal};

}  // namespace
}  // namespace warpsmith::selftest
