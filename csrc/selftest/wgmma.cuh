// Products by wgmma against the plain sum, of whole numbers that every format and sum holds: what wgmma.cu,
// wgmma_columns.cu and wgmma_columns_of_bytes.cu share.
#pragma once

#include <cmath>
#include <cstring>
#include <utility>

#include "device/matrix_descriptor.h"
#include "device/ptx/wgmma.h"
#include "device/warp.h"
#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {

inline constexpr int kM = 64, kThreads = 128, kSm = 90;

struct Form {
  Line line = Line::of_128;
  bool registers = false;  // where a comes from; otherwise from shared memory
  int steps = 4;           // instructions, 32 bytes along k each
};

template <class Kind_, int n_, Form form_ = Form{}>
struct Case {
  using Kind = Kind_;
  static constexpr Form form = form_;
  static constexpr int n = n_, size = 32 / Kind::k, k = form.steps * Kind::k;  // bytes of a value; all of k
  using A = WgmmaOperand<Kind::a_major, kM, k, size, form.line>;
  using B = WgmmaOperand<Kind::b_major, n, k, size, form.line>;
  static constexpr int shared = A::bytes + B::bytes;  // of whole atoms both
};

#if WARPSMITH_HAS_WGMMA

// Value by value to where the copy engine would have brought it. from: [mn, k]. Loops stay loops, which compiles hundreds
// of kernels in half the time.
template <class Operand>
__device__ void place(char* to, const char* from) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Operand::mn * Operand::k; i += kThreads) {
    const int mn = i / Operand::k, k = i % Operand::k;
    const int line = Operand::along_k ? mn : k, along = (Operand::along_k ? k : mn) * Operand::size;
    const int at = along / Operand::line * Operand::panel_bytes + line * Operand::line + along % Operand::line;
    const int swizzled = at ^ (at / 128 & (Operand::line / 16 - 1)) * 16;
#pragma unroll 1
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
  constexpr int kRegisters = Case::n / (Kind::packs_sums ? 4 : 2), kSteps = Case::form.steps;
  char *sA = memory, *sB = memory + A::bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  place<A>(sA, a);
  place<B>(sB, b);
  Register sums[kRegisters];
  auto* mine = reinterpret_cast<Register*>(d) + threadIdx.x * kRegisters;
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) sums[i] = mine[i];
  uint32_t words[kSteps][4];
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i % 2 * 8, word = step * 8 + lane % 4 + i / 2 * 4;
      words[step][i] = reinterpret_cast<const uint32_t*>(a)[row * kSteps * 8 + word];
    }
  }
  ptx::fence_proxy_async();
  __syncthreads();
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const auto of = [&](auto operand, const char* from) {
      using Operand = decltype(operand);
      return Operand::descriptor(ptx::shared_address(from)).at(Operand::offset(0, step * Kind::k)).bits();
    };
    if constexpr (Case::form.registers) {
      ptx::wgmma<Kind>(sums, words[step], of(B{}, sB), adds || step > 0);
    } else {
      ptx::wgmma<Kind>(sums, of(A{}, sA), of(B{}, sB), adds || step > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(sums);
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) mine[i] = sums[i];
#endif
}

// A case as the host sees it, one type for all of a kind.
template <class Kind>
struct Product {
  int n, k, shared;
  bool registers;
  void (*launch)(const LaunchConfig& config, typename Kind::Sum* d, const char* a, const char* b, bool adds);
};

template <class Case>
Product<typename Case::Kind> product_of() {
  using Sum = typename Case::Kind::Sum;
  return {Case::n, Case::k, Case::shared, Case::form.registers,
          [](const LaunchConfig& config, Sum* d, const char* a, const char* b, bool adds) {
            warpsmith::launch<&wgmma_kernel<Case>>(config, kStream, d, a, b, adds);
          }};
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
inline int row_of(int thread, int i) { return thread / kWarp * 16 + thread % kWarp / 4 + i % 4 / 2 * 8; }
inline int column_of(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

template <class Kind>
std::string check_values(std::string_view what, const Product<Kind>& product, const std::vector<float>& a,
                         const std::vector<float>& b, bool adds) {
  using Sum = typename Kind::Sum;
  constexpr int kSize = 32 / Kind::k;
  const int each = product.n / 2;  // sums of a thread
  const auto number = [](float value) {
    if constexpr (std::is_same_v<Sum, f16>) {
      return std::bit_cast<Sum>(static_cast<uint16_t>(encode_reference(format_of<f16>(), value)));
    } else {
      return static_cast<Sum>(value);
    }
  };
  std::vector<Sum> start(kThreads * each);
  std::vector<float> expected(start.size()), found;
  for (int i = 0; i < kThreads * each; ++i) {
    const int row = row_of(i / each, i % each), column = column_of(i / each, i % each);
    const float first = static_cast<float>((row * 7 + column * 5) % 31 - 15);
    start[i] = number(first);
    float sum = adds ? first : 0.0f;
    for (int k = 0; k < product.k; ++k) sum += a[row * product.k + k] * b[column * product.k + k];
    expected[i] = sum;
  }
  DeviceArray<Sum> d(start);
  DeviceArray<char> a_bytes(encode<typename Kind::A>(a, kSize)), b_bytes(encode<typename Kind::B>(b, kSize));
  product.launch({.grid = 1, .block = kThreads, .dynamic_smem = product.shared}, d.data(), a_bytes.data(),
                 b_bytes.data(), adds);
  for (const Sum value : d.values()) {
    if constexpr (std::is_same_v<Sum, f16>) {
      found.push_back(static_cast<float>(decode_reference(format_of<f16>(), std::bit_cast<uint16_t>(value))));
    } else {
      found.push_back(static_cast<float>(value));
    }
  }
  return compare(text("wgmma of ", what, ", ", product.n, " columns", product.registers ? ", a in registers" : ""),
                 expected, found, [&](size_t i) {
                   const int thread = static_cast<int>(i) / each, value = static_cast<int>(i) % each;
                   return text("row ", row_of(thread, value), ", column ", column_of(thread, value));
                 });
}

// Each of them, added to what there is and by itself.
template <class Kind>
std::string check(std::string_view what, const std::vector<Product<Kind>>& products) {
  for (const Product<Kind>& product : products) {
    Random random(31);
    std::vector<float> a(kM * product.k), b(product.n * product.k);
    for (float& value : a) value = static_cast<float>(random.integer(-3, 3));
    for (float& value : b) value = static_cast<float>(random.integer(-3, 3));
    for (const bool adds : {true, false}) {
      const std::string failure = check_values(what, product, a, b, adds);
      if (!failure.empty()) return failure;
    }
  }
  return "";
}

// Of 8 (i + 1) columns, one instruction each, a from shared memory and from registers. Of s8 there are no odd multiples of
// 8 from 32 on.
template <class Kind, int... i>
std::string check_columns_of(std::string_view what, std::integer_sequence<int, i...>) {
  std::vector<Product<Kind>> products;
  const auto add = [&]<int n>() {
    if constexpr (!Kind::integers || n <= 24 || n % 16 == 0) {
      products.push_back(product_of<Case<Kind, n, Form{Line::of_32, /*registers=*/false, /*steps=*/1}>>());
      products.push_back(product_of<Case<Kind, n, Form{Line::of_32, /*registers=*/true, /*steps=*/1}>>());
    }
  };
  (add.template operator()<8 * (i + 1)>(), ...);
  return check(what, products);
}

// Every number of columns that the instruction has.
template <class Kind>
std::string check_columns(std::string_view what) {
  return check_columns_of<Kind>(what, std::make_integer_sequence<int, 32>());
}

}  // namespace warpsmith::selftest
