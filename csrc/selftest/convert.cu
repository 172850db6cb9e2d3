// device/convert.h: every 8- and 16-bit code to float, floats back at every boundary of the format and at random, scalar
// and by vectors; then all 2^32 floats through the fp8 instructions against the portable encoder.
#include "device/convert.h"

#include <algorithm>

#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16;  // of the widest vector; every array is a multiple of it

template <class T>
using Code = std::conditional_t<sizeof(T) == 1, uint8_t, uint16_t>;

template <class T, int n>
__global__ void decode_kernel(float* to, const T* from, int vectors) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  Vec<T, n> in;
  float out[n];
  load(in, from + i * n);
  to_float(out, in);
#pragma unroll
  for (int k = 0; k < n; ++k) to[i * n + k] = out[k];
}

template <class T, int n>
__global__ void encode_kernel(T* to, const float* from, int vectors) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  float in[n];
  Vec<T, n> out;
#pragma unroll
  for (int k = 0; k < n; ++k) in[k] = from[i * n + k];
  from_float(out, in);
  store(to + i * n, out);
}

template <auto kernel, class To, class From>
void launch_vectors(To* to, const From* from, size_t size, int n) {
  const int vectors = static_cast<int>(size) / n;
  const dim3 grid((vectors + kThreads - 1) / kThreads);
  warpsmith::launch<kernel>({grid, kThreads}, kStream, to, from, vectors);
}

// --- codes to floats ---

// Every code in every lane of the widest vector; fp8 codes beside every other, too.
template <class T>
std::vector<Code<T>> all_codes() {
  constexpr uint32_t kCodes = 1u << (8 * sizeof(T));
  std::vector<Code<T>> codes;
  for (uint32_t shift = 0; shift < kLanes; ++shift) {
    for (uint32_t i = 0; i < kCodes; ++i) codes.push_back(static_cast<Code<T>>(i + shift));
  }
  if constexpr (sizeof(T) == 1) {
    for (uint32_t pair = 0; pair < kCodes * kCodes; ++pair) {
      codes.push_back(static_cast<Code<T>>(pair));
      codes.push_back(static_cast<Code<T>>(pair >> 8));
    }
  }
  return codes;
}

template <class T, int n = 1>
std::string check_decode(const std::vector<Code<T>>& codes, DeviceArray<Code<T>>& from,
                         const std::vector<float>& expected) {
  if constexpr (n <= kPack<T>) {
    DeviceArray<float> to(codes.size());
    launch_vectors<&decode_kernel<T, n>>(to.data(), reinterpret_cast<const T*>(from.data()), codes.size(), n);
    const std::string what = text("to_float, ", format_of<T>().name, "x", n);
    const auto code = [&](size_t i) { return text("code ", static_cast<int>(codes[i]), " in lane ", i % n); };
    return first_failure([&] { return compare(what, expected, to.values(), code); },
                         [&] { return check_decode<T, 2 * n>(codes, from, expected); });
  }
  return "";
}

template <class T>
std::string check_codes() {
  const auto codes = all_codes<T>();
  DeviceArray<Code<T>> from(codes);
  std::vector<float> expected;
  for (const auto code : codes) expected.push_back(static_cast<float>(decode_reference(format_of<T>(), code)));
  if constexpr (kIsFp8<T>) {
    std::vector<float> portable;
    for (const auto code : codes) portable.push_back(decode_fp8_portable<T>(code));
    const auto failure = compare(text("decode_fp8_portable on the host, ", format_of<T>().name), expected, portable,
                                 [&](size_t i) { return text("code ", static_cast<int>(codes[i])); });
    if (!failure.empty()) return failure;
  }
  return check_decode<T>(codes, from, expected);
}

std::string run_decode() {
  return first_failure(check_codes<e4m3>, check_codes<e5m2>, check_codes<f16>, check_codes<bf16>);
}

// --- floats to codes ---

// Every value of the format, the midpoint to the next one, and the floats on both sides of the midpoint; the midpoint
// past the largest value is where overflow begins.
void add_boundaries(std::vector<float>& values, const Format& format) {
  for (uint32_t code = 0; code < format.beyond(); ++code) {
    const double value = decode_reference(format, code);
    const double step = code == 0 ? decode_reference(format, 1) : value - decode_reference(format, code - 1);
    const double next = code + 1 < format.beyond() ? decode_reference(format, code + 1) : value + step;
    const float tie = static_cast<float>((value + next) / 2);
    const float below = std::nextafterf(tie, 0.0f), above = std::nextafterf(tie, HUGE_VALF);
    for (const float x : {static_cast<float>(value), below, tie, above}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
}

template <class T>
std::vector<float> inputs_for() {
  constexpr float kLargest = std::numeric_limits<float>::max(), kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kRandom = 1 << 20;
  const Format format = format_of<T>();
  std::vector<float> boundaries{kInfinity, -kInfinity, kLargest,  -kLargest, std::nanf(""), -std::nanf(""),
                                0x1p-149f, -0x1p-149f, 0x1p-126f, 464.0f,    465.0f,        480.0f,
                                -480.0f,   61439.0f,   61440.0f,  65535.0f,  65536.0f,      -65536.0f};
  add_boundaries(boundaries, format);
  // An odd number of them over and over: each comes to stand in every lane.
  if (boundaries.size() % 2 == 0) boundaries.push_back(1.0f);
  std::vector<float> values;
  for (int repeat = 0; repeat < kPack<T>; ++repeat) {
    values.insert(values.end(), boundaries.begin(), boundaries.end());
  }
  Random random(5);
  for (int i = 0; i < kRandom; ++i) {
    const uint32_t bits = random.word();
    values.push_back(std::bit_cast<float>(bits));
    // the same sign and mantissa, with an exponent from below the format's subnormals to beyond its overflow
    const int exponent = random.integer(-format.bias() - format.mantissa_bits - 1, format.bias() + 2);
    const uint32_t field = static_cast<uint32_t>(std::clamp(exponent + 127, 0, 255));
    values.push_back(std::bit_cast<float>((bits & 0x807fffffu) | field << 23));
  }
  while (values.size() % kLanes != 0) values.push_back(1.0f);
  return values;
}

template <class T>
bool same_code(Code<T> a, Code<T> b) {
  return a == b || (format_of<T>().is_nan(a) && format_of<T>().is_nan(b));
}

template <class T, int n = 1>
std::string check_encode(const std::vector<float>& values, DeviceArray<float>& from,
                         const std::vector<Code<T>>& expected) {
  if constexpr (n <= kPack<T>) {
    DeviceArray<Code<T>> to(values.size());
    launch_vectors<&encode_kernel<T, n>>(reinterpret_cast<T*>(to.data()), static_cast<const float*>(from.data()),
                                         values.size(), n);
    const std::string what = text("from_float, ", format_of<T>().name, "x", n);
    const auto value = [&](size_t i) { return text(show(values[i]), " in lane ", i % n); };
    return first_failure([&] { return compare(what, expected, to.values(), value, same_code<T>); },
                         [&] { return check_encode<T, 2 * n>(values, from, expected); });
  }
  return "";
}

template <class T>
std::string check_floats() {
  const auto values = inputs_for<T>();
  DeviceArray<float> from(values);
  std::vector<Code<T>> expected;
  for (const float x : values) expected.push_back(static_cast<Code<T>>(encode_reference(format_of<T>(), x)));
  if constexpr (kIsFp8<T>) {
    std::vector<Code<T>> portable;
    for (const float x : values) portable.push_back(encode_fp8_portable<T>(x));
    const auto failure = compare(
        text("encode_fp8_portable on the host, ", format_of<T>().name), expected, portable,
        [&](size_t i) { return show(values[i]); }, same_code<T>);
    if (!failure.empty()) return failure;
  }
  return check_encode<T>(values, from, expected);
}

std::string run_encode() {
  return first_failure(check_floats<e4m3>, check_floats<e5m2>, check_floats<f16>, check_floats<bf16>);
}

// --- f32, which passes through ---

template <int n>
std::string check_identity() {
  Random random(6);
  std::vector<float> values(1 << 12);
  for (float& x : values) x = std::bit_cast<float>(random.word());
  DeviceArray<float> from(values), decoded(values.size()), encoded(values.size());
  launch_vectors<&decode_kernel<float, n>>(decoded.data(), static_cast<const float*>(from.data()), values.size(), n);
  launch_vectors<&encode_kernel<float, n>>(encoded.data(), static_cast<const float*>(from.data()), values.size(), n);
  const auto value = [&](size_t i) { return show(values[i]); };
  return first_failure([&] { return compare(text("to_float, f32x", n), values, decoded.values(), value); },
                       [&] { return compare(text("from_float, f32x", n), values, encoded.values(), value); });
}

std::string run_identity() { return first_failure(check_identity<1>, check_identity<2>, check_identity<4>); }

// --- every float there is ---

template <class T>
__device__ bool same_code_on_gpu(uint32_t a, uint32_t b) {
  constexpr uint32_t kFirstNan = std::is_same_v<T, e4m3> ? 0x7f : 0x7d;
  return a == b || ((a & 0x7f) >= kFirstNan && (b & 0x7f) >= kFirstNan);
}

// The smallest (bits of x, encoded word) that is wrong. Each float x takes a low, a high and two inner places; its
// companion runs through all floats, too, in a scattered order.
template <class T, bool four>
__global__ void exhaustive_kernel(unsigned long long* first_wrong) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i >> 32 == 0; i += stride) {
    const uint32_t bits = static_cast<uint32_t>(i);
    const float x = __uint_as_float(bits), companion = __uint_as_float(bits * 0x9e3779b9u + 1);
    const float values[4] = {companion, x, x, companion};
    uint32_t word;
    if constexpr (four) {
      word = encode_fp8x4<T>(values[0], values[1], values[2], values[3]);
    } else {
      word = encode_fp8x2<T>(values[0], values[1]) | static_cast<uint32_t>(encode_fp8x2<T>(values[2], values[3])) << 16;
    }
    bool right = true;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      right &= same_code_on_gpu<T>(word >> 8 * k & 0xff, encode_fp8_portable<T>(values[k]));
    }
    if (!right) atomicMin(first_wrong, i << 32 | word);
  }
}

template <class T, bool four>
std::string check_every_float() {
  constexpr unsigned long long kNone = ~0ull;
  DeviceArray<unsigned long long> first_wrong(std::vector<unsigned long long>{kNone});
  const dim3 grid(16 * device_info(current_device()).sm_count);
  warpsmith::launch<&exhaustive_kernel<T, four>>({grid, kThreads}, kStream, first_wrong.data());
  const unsigned long long found = first_wrong.values()[0];
  if (found == kNone) return "";
  const uint32_t bits = static_cast<uint32_t>(found >> 32);
  const float x = std::bit_cast<float>(bits), companion = std::bit_cast<float>(bits * 0x9e3779b9u + 1);
  const uint32_t expected = encode_fp8_portable<T>(x) * 0x00010100u | encode_fp8_portable<T>(companion) * 0x01000001u;
  return text(four ? "encode_fp8x4, " : "encode_fp8x2, ", format_of<T>().name, ": ", show(companion), ", ", show(x),
              " twice, the first again: expected ", hex(expected), ", got ", hex(static_cast<uint32_t>(found)));
}

std::string run_every_float() {
  return first_failure(check_every_float<e4m3, /*four=*/false>, check_every_float<e4m3, /*four=*/true>,
                       check_every_float<e5m2, /*four=*/false>, check_every_float<e5m2, /*four=*/true>);
}

const SelfTestEntry decode{"convert_to_float", run_decode};
const SelfTestEntry encode{"convert_from_float", run_encode};
const SelfTestEntry identity{"convert_f32", run_identity};
const SelfTestEntry every_float{"convert_fp8_every_float", run_every_float};

}  // namespace
}  // namespace warpsmith::selftest
