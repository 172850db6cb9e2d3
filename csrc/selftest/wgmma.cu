// device/ptx/wgmma.h and device/matrix_descriptor.h: every kind of product against the plain sum, of whole numbers that every
// format and sum holds; every number of columns; a from shared memory, along k and along m, and from registers; lines of 128,
// 64 and 32 bytes; what the sums start from; NaN and infinity. Passes without running but on sm_90.
#include "device/ptx/wgmma.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "device/matrix_descriptor.h"
#include "device/warp.h"
#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kM = 64, kThreads = 128, kSm = 90;
constexpr int kDepth = 128;  // bytes along k: four instructions

template <class Kind>
inline constexpr int kSize = kDepth / 4 / Kind::k;  // bytes of a value

template <class Kind>
inline constexpr int kK = kDepth / kSize<Kind>;

// Along which way lines run and how long they are; whether a comes from registers.
template <class Kind_, int n_, Line line_ = Line::of_128, bool registers_ = false>
struct Case {
  using Kind = Kind_;
  static constexpr int n = n_, size = kSize<Kind>, k = kK<Kind>;
  static constexpr bool registers = registers_;
  using A = WgmmaOperand<Kind::a_major, kM, k, size, line_>;
  using B = WgmmaOperand<Kind::b_major, n, k, size, line_>;
  static constexpr int shared = A::bytes + B::bytes;  // of whole atoms both
};

#if WARPSMITH_HAS_WGMMA

// Value by value to where the copy engine would have brought it. from: [mn, k].
template <class Operand>
__device__ void place(char* to, const char* from) {
  for (int i = static_cast<int>(threadIdx.x); i < Operand::mn * Operand::k; i += kThreads) {
    const int mn = i / Operand::k, k = i % Operand::k;
    const int line = Operand::along_k ? mn : k, along = (Operand::along_k ? k : mn) * Operand::size;
    const int at = along / Operand::line * Operand::panel_bytes + line * Operand::line + along % Operand::line;
    const int swizzled = at ^ (at / 128 & (Operand::line / 16 - 1)) * 16;
    for (int byte = 0; byte < Operand::size; ++byte) to[swizzled + byte] = from[i * Operand::size + byte];
  }
}

#endif

// d: the sums of each thread, [threads, n / 2]; a [64, k], b [n, k].
template <class Case>
__global__ void wgmma_kernel([[maybe_unused]] typename Case::Kind::Sum* d, [[maybe_unused]] const char* a,
                             [[maybe_unused]] const char* b, [[maybe_unused]] bool adds) {
#if WARPSMITH_HAS_WGMMA
  using Kind = typename Case::Kind;
  using Register = std::conditional_t<Kind::packs_sums, uint32_t, typename Kind::Sum>;
  using A = typename Case::A;
  using B = typename Case::B;
  extern __shared__ __align__(1024) char memory[];
  constexpr int kRegisters = Case::n / (Kind::packs_sums ? 4 : 2);
  char *sA = memory, *sB = memory + A::bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  place<A>(sA, a);
  place<B>(sB, b);
  Register sums[kRegisters];
  auto* mine = reinterpret_cast<Register*>(d) + threadIdx.x * kRegisters;
  for (int i = 0; i < kRegisters; ++i) sums[i] = mine[i];
  uint32_t words[4][4];  // of four instructions
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i % 2 * 8, word = step * 8 + lane % 4 + i / 2 * 4;
      words[step][i] = reinterpret_cast<const uint32_t*>(a)[row * kDepth / 4 + word];
    }
  }
  ptx::fence_proxy_async();
  __syncthreads();
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const auto of = [&](auto operand, const char* from) {
      using Operand = decltype(operand);
      return Operand::descriptor(ptx::shared_address(from)).at(Operand::offset(0, step * Kind::k)).bits();
    };
    if constexpr (Case::registers) {
      ptx::wgmma<Kind>(sums, words[step], of(B{}, sB), adds || step > 0);
    } else {
      ptx::wgmma<Kind>(sums, of(A{}, sA), of(B{}, sB), adds || step > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(sums);
  for (int i = 0; i < kRegisters; ++i) mine[i] = sums[i];
#endif
}

template <class T>
uint32_t code_of(float value) {
  if constexpr (std::is_same_v<T, int8_t>) return static_cast<uint8_t>(static_cast<int>(value));
  // The low 13 bits are noise, which must not show.
  if constexpr (std::is_same_v<T, Tf32Operand>) {
    return std::bit_cast<uint32_t>(value) | (std::isinf(value) ? 0 : 0x1fff);
  } else if constexpr (!std::is_same_v<T, int8_t>) {
    return encode_reference(format_of<T>(), value);
  }
}

template <class T>
std::vector<char> encode(const std::vector<float>& values, int size) {
  std::vector<char> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t code = code_of<T>(values[i]);
    std::memcpy(&bytes[i * size], &code, size);
  }
  return bytes;
}

// Of a thread's value `i`: its row and its column.
int row_of(int thread, int i) { return thread / kWarp * 16 + thread % kWarp / 4 + i % 4 / 2 * 8; }
int column_of(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

template <class Case>
std::string check_values(std::string_view what, const std::vector<float>& a, const std::vector<float>& b, bool adds) {
  using Kind = typename Case::Kind;
  using Sum = typename Kind::Sum;
  constexpr int kEach = Case::n / 2;
  const auto number = [](float value) {
    if constexpr (std::is_same_v<Sum, f16>) {
      return std::bit_cast<Sum>(static_cast<uint16_t>(encode_reference(format_of<f16>(), value)));
    } else {
      return static_cast<Sum>(value);
    }
  };
  std::vector<Sum> start(kThreads * kEach);
  std::vector<float> expected(start.size()), found;
  for (int i = 0; i < kThreads * kEach; ++i) {
    const int row = row_of(i / kEach, i % kEach), column = column_of(i / kEach, i % kEach);
    const float first = static_cast<float>((row * 7 + column * 5) % 31 - 15);
    start[i] = number(first);
    float sum = adds ? first : 0.0f;
    for (int k = 0; k < Case::k; ++k) sum += a[row * Case::k + k] * b[column * Case::k + k];
    expected[i] = sum;
  }
  DeviceArray<Sum> d(start);
  DeviceArray<char> a_bytes(encode<typename Kind::A>(a, Case::size)), b_bytes(encode<typename Kind::B>(b, Case::size));
  warpsmith::launch<&wgmma_kernel<Case>>({.grid = 1, .block = kThreads, .dynamic_smem = Case::shared}, kStream,
                                         d.data(), static_cast<const char*>(a_bytes.data()),
                                         static_cast<const char*>(b_bytes.data()), adds);
  for (const Sum value : d.values()) {
    if constexpr (std::is_same_v<Sum, f16>) {
      found.push_back(static_cast<float>(decode_reference(format_of<f16>(), std::bit_cast<uint16_t>(value))));
    } else {
      found.push_back(static_cast<float>(value));
    }
  }
  return compare(text("wgmma of ", what, ", ", Case::n, " columns", Case::registers ? ", a in registers" : ""),
                 expected, found, [](size_t i) {
                   const int thread = static_cast<int>(i) / kEach, value = static_cast<int>(i) % kEach;
                   return text("row ", row_of(thread, value), ", column ", column_of(thread, value));
                 });
}

template <class Case>
std::string check(std::string_view what) {
  Random random(31);
  std::vector<float> a(kM * Case::k), b(Case::n * Case::k);
  for (float& value : a) value = static_cast<float>(random.integer(-3, 3));
  for (float& value : b) value = static_cast<float>(random.integer(-3, 3));
  return first_failure([&] { return check_values<Case>(what, a, b, true); },
                       [&] { return check_values<Case>(what, a, b, false); });
}

// Both ways for a, of a few numbers of columns.
template <class Kind>
std::string check_kind(std::string_view what) {
  return first_failure([&] { return check<Case<Kind, 8>>(what); }, [&] { return check<Case<Kind, 96>>(what); },
                       [&] { return check<Case<Kind, 256>>(what); },
                       [&] { return check<Case<Kind, 8, Line::of_128, true>>(what); },
                       [&] { return check<Case<Kind, 64, Line::of_128, true>>(what); });
}

// Every number of columns.
template <int n>
std::string check_columns() {
  std::string failure = check<Case<WgmmaKind<bf16>, n>>("bf16");
  if constexpr (n < 256) {
    if (failure.empty()) failure = check_columns<n + 8>();
  }
  return failure;
}

template <Line line>
std::string check_lines() {
  constexpr Major k = Major::k, mn = Major::mn;
  const std::string what = text("f16 in lines of ", static_cast<int>(line), " bytes");
  return first_failure([&] { return check<Case<WgmmaKind<f16, f16, float, k, k>, 64, line>>(what + " along k"); },
                       [&] { return check<Case<WgmmaKind<f16, f16, float, mn, k>, 64, line>>(what + ", a along m"); },
                       [&] { return check<Case<WgmmaKind<f16, f16, float, k, mn>, 128, line>>(what + ", b along n"); },
                       [&] {
                         using Both = WgmmaKind<f16, f16, float, mn, mn>;
                         return check<Case<Both, 192, line>>(what + ", a along m, b along n");
                       });
}

// Row 3 becomes NaN, column 5 infinite or NaN; the others are as before.
std::string check_not_finite() {
  using Tested = Case<WgmmaKind<bf16>, 64>;
  Random random(32);
  std::vector<float> a(kM * Tested::k), b(Tested::n * Tested::k);
  for (float& value : a) value = static_cast<float>(random.integer(1, 3));
  for (float& value : b) value = static_cast<float>(random.integer(-3, 3));
  a[3 * Tested::k + 9] = std::numeric_limits<float>::quiet_NaN();
  b[5 * Tested::k + 1] = std::numeric_limits<float>::infinity();
  return check_values<Tested>("bf16, not all finite", a, b, true);
}

std::string run() {
  if (device_info(current_device()).sm != kSm) return "";
  using Bytes = WgmmaKind<int8_t, int8_t, int32_t>;
  return first_failure([] { return check_columns<8>(); }, [] { return check_kind<WgmmaKind<bf16>>("bf16"); },
                       [] { return check_kind<WgmmaKind<f16>>("f16"); },
                       [] { return check_kind<WgmmaKind<f16, f16, f16>>("f16 in f16"); },
                       [] { return check_kind<WgmmaKind<Tf32Operand>>("tf32"); },
                       [] { return check_kind<WgmmaKind<e4m3>>("e4m3"); },
                       [] { return check_kind<WgmmaKind<e5m2>>("e5m2"); },
                       [] { return check_kind<WgmmaKind<e4m3, e5m2>>("e4m3 and e5m2"); },
                       [] { return check_kind<WgmmaKind<e5m2, e4m3, f16>>("e5m2 and e4m3 in f16"); },
                       [] { return check_kind<Bytes>("s8"); }, check_lines<Line::of_128>, check_lines<Line::of_64>,
                       check_lines<Line::of_32>, check_not_finite);
}

const SelfTestEntry entered{"wgmma", run};

}  // namespace
}  // namespace warpsmith::selftest
