// device/ptx/mma.h, mma_formats.h: every product against the plain sum, of whole numbers that every format and accumulator
// holds; what the accumulator starts from; NaN and infinity; the rounding to TF32. fp8 passes without running below sm_89.
#include "device/ptx/convert.h"
#include "device/ptx/mma.h"
#include "device/ptx/mma_formats.h"

#include <cmath>
#include <limits>

#include "device/warp.h"
#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kM = 16, kN = 8, kWords = 8;  // a row of a and a column of b are 8 words along k, in every format
constexpr int kFp8Sm = 89;

// What a product is made of: the type of its values, how many a word holds, its accumulator, its code for a value.
template <class T>
struct Halves {
  using Accumulator = float;
  static constexpr int per_word = 2;
  static constexpr std::string_view name = format_of<T>().name;
  static uint32_t encode(float value) { return encode_reference(format_of<T>(), value); }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16<T>(d, a, b);
  }
};

struct HalvesInHalf {
  using Accumulator = float;  // as the test sees it
  static constexpr int per_word = 2;
  static constexpr std::string_view name = "f16 in f16";
  static uint32_t encode(float value) { return encode_reference(format_of<f16>(), value); }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    uint32_t pairs[2];
    for (int i = 0; i < 2; ++i) {
      const __half2 pair = __floats2half2_rn(d[2 * i], d[2 * i + 1]);
      pairs[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    ptx::mma_m16n8k16_f16(pairs, a, b);
    for (int i = 0; i < 2; ++i) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
      d[2 * i] = pair.x;
      d[2 * i + 1] = pair.y;
    }
  }
};

struct Tf32 {
  using Accumulator = float;
  static constexpr int per_word = 1;
  static constexpr std::string_view name = "tf32";
  // The low 13 bits are noise, which must not show.
  static uint32_t encode(float value) { return std::bit_cast<uint32_t>(value) | (std::isinf(value) ? 0 : 0x1fff); }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k8_tf32(d, a, b);
  }
};

struct Bytes {
  using Accumulator = int32_t;
  static constexpr int per_word = 4;
  static constexpr std::string_view name = "s8";
  static uint32_t encode(float value) { return static_cast<uint8_t>(static_cast<int>(value)); }
  __device__ static void multiply(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k32_s8(d, a, b);
  }
};

template <class A, class B>
struct Fp8 {
  using Accumulator = float;
  static constexpr int per_word = 4;
  static constexpr std::string_view name = format_of<A>().name, name_b = format_of<B>().name;
  static uint32_t encode(float value) { return encode_reference(format_of<A>(), value); }
  static uint32_t encode_b(float value) { return encode_reference(format_of<B>(), value); }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    constexpr bool a_e4m3 = std::is_same_v<A, e4m3>, b_e4m3 = std::is_same_v<B, e4m3>;
    if constexpr (a_e4m3 && b_e4m3) {
      ptx::mma_m16n8k32_e4m3(d, a, b);
    } else if constexpr (a_e4m3) {
      ptx::mma_m16n8k32_e4m3_e5m2(d, a, b);
    } else if constexpr (b_e4m3) {
      ptx::mma_m16n8k32_e5m2_e4m3(d, a, b);
    } else {
      ptx::mma_m16n8k32_e5m2(d, a, b);
    }
  }
};

// Where b is of another format than a.
template <class Product>
concept HasFormatOfB = requires { Product::name_b; };

template <class Product>
constexpr std::string_view name_of_b() {
  if constexpr (HasFormatOfB<Product>) return Product::name_b;
  return Product::name;
}

template <class Product>
uint32_t encode_value_of_b(float value) {
  if constexpr (HasFormatOfB<Product>) return Product::encode_b(value);
  return Product::encode(value);
}

// One warp: d[16, 8] += a[16, k] b[k, 8], with b by columns.
template <class Product>
__global__ void mma_kernel(typename Product::Accumulator* d, const uint32_t* a, const uint32_t* b) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  uint32_t a_words[4], b_words[2];
  typename Product::Accumulator sums[4];
  for (int i = 0; i < 4; ++i) a_words[i] = a[(g + i % 2 * 8) * kWords + t + i / 2 * 4];
  for (int i = 0; i < 2; ++i) b_words[i] = b[g * kWords + t + i * 4];
  for (int i = 0; i < 4; ++i) sums[i] = d[(g + i / 2 * 8) * kN + t * 2 + i % 2];
  Product::multiply(sums, a_words, b_words);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * kN + t * 2 + i % 2] = sums[i];
}

template <class Product>
std::vector<uint32_t> encode(const std::vector<float>& values, uint32_t (*value_of)(float)) {
  constexpr int kBits = 32 / Product::per_word;
  std::vector<uint32_t> words(values.size() / Product::per_word);
  for (size_t i = 0; i < values.size(); ++i) {
    words[i / Product::per_word] |= value_of(values[i]) << (i % Product::per_word * kBits);
  }
  return words;
}

template <class Product>
std::string check_values(std::string_view kind, const std::vector<float>& a, const std::vector<float>& b,
                         const std::vector<typename Product::Accumulator>& start) {
  using Accumulator = typename Product::Accumulator;
  constexpr int kK = kWords * Product::per_word;
  std::vector<Accumulator> expected = start;
  for (int row = 0; row < kM; ++row) {
    for (int column = 0; column < kN; ++column) {
      for (int k = 0; k < kK; ++k) {
        expected[row * kN + column] += static_cast<Accumulator>(a[row * kK + k] * b[column * kK + k]);
      }
    }
  }
  DeviceArray<Accumulator> d(start);
  DeviceArray<uint32_t> a_words(encode<Product>(a, Product::encode)),
      b_words(encode<Product>(b, encode_value_of_b<Product>));
  warpsmith::launch<&mma_kernel<Product>>({1, kWarp}, kStream, d.data(), static_cast<const uint32_t*>(a_words.data()),
                                          static_cast<const uint32_t*>(b_words.data()));
  return compare(text("mma of ", Product::name, " and ", name_of_b<Product>(), ", ", kind), expected, d.values(),
                 [](size_t i) { return text("row ", i / kN, ", column ", i % kN); });
}

template <class Product>
std::string check() {
  using Accumulator = typename Product::Accumulator;
  constexpr int kK = kWords * Product::per_word;
  Random random(23);
  std::vector<float> a(kM * kK), b(kN * kK);
  std::vector<Accumulator> start(kM * kN);
  for (float& value : a) value = static_cast<float>(random.integer(-6, 6));
  for (float& value : b) value = static_cast<float>(random.integer(-6, 6));
  for (Accumulator& value : start) value = static_cast<Accumulator>(random.integer(-800, 800));
  const auto not_finite = [&]() -> std::string {
    if constexpr (std::is_same_v<Accumulator, float>) {
      // Row 3 becomes NaN, column 5 infinite or NaN; the others are as before. e4m3 has no infinity; it becomes NaN.
      std::vector<float> with_nan = a, with_infinity = b;
      with_nan[3 * kK + kK / 2] = std::numeric_limits<float>::quiet_NaN();
      with_infinity[5 * kK + 1] = name_of_b<Product>() == "e4m3" ? std::numeric_limits<float>::quiet_NaN()
                                                                 : std::numeric_limits<float>::infinity();
      return check_values<Product>("not all finite", with_nan, with_infinity, start);
    }
    return "";
  };
  return first_failure([&] { return check_values<Product>("whole numbers", a, b, start); }, not_finite);
}

template <class A, class B>
std::string check_fp8() {
  return device_info(current_device()).sm < kFp8Sm ? "" : check<Fp8<A, B>>();
}

__global__ void tf32_kernel(uint32_t* to, const float* from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = ptx::tf32_from_float(from[i]) & ~0x1fffu;
}

std::string check_rounding() {
  constexpr int kThreads = 128;
  Random random(24);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> values{0.0f, -0.0f, 1.0f, -1.0f, 65504.0f, kInfinity, -kInfinity};
  for (const uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x1fffu}) {
    for (int i = 0; i < 64; ++i) {
      const uint32_t bits = (random.word() & 0xbfffe000u) | 0x01000000u | low;  // below 2, of either sign, normal
      values.push_back(std::bit_cast<float>(bits));
    }
  }
  std::vector<uint32_t> expected;
  for (const float value : values) expected.push_back((std::bit_cast<uint32_t>(value) + 0x1000u) & ~0x1fffu);
  const int n = static_cast<int>(values.size());
  DeviceArray<float> from(values);
  DeviceArray<uint32_t> to(values.size());
  warpsmith::launch<&tf32_kernel>({static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads}, kStream, to.data(),
                                  static_cast<const float*>(from.data()), n);
  return compare("tf32_from_float", expected, to.values(), [&](size_t i) { return show(values[i]); });
}

std::string run() {
  return first_failure(check<Halves<f16>>, check<Halves<bf16>>, check<HalvesInHalf>, check<Tf32>, check<Bytes>,
                       check_fp8<e4m3, e4m3>, check_fp8<e5m2, e5m2>, check_fp8<e4m3, e5m2>, check_fp8<e5m2, e4m3>,
                       check_rounding);
}

const SelfTestEntry entered{"mma", run};

}  // namespace
}  // namespace warpsmith::selftest
