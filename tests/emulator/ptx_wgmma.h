// device/ptx/wgmma.h without PTX: each thread of a warpgroup computes its own sums, of what the async proxy sees.
#pragma once

#include <array>
#include <memory>

#include "background.h"
#include "device/wgmma_kind.h"
#include "ptx.h"

#if !defined(EMULATED_ARCH) || EMULATED_ARCH == 900
#define WARPSMITH_HAS_WGMMA 1
#else
#define WARPSMITH_HAS_WGMMA 0
#endif

namespace emu {

template <class T>
using WgmmaValue = std::conditional_t<std::is_same_v<T, warpsmith::Tf32Operand>, Tf32, T>;

// An operand of [lines, k] in shared memory, widened.
template <class T, bool along_mn, int k>
class WgmmaMatrix {
 public:
  using Value = WgmmaValue<T>;

  explicit WgmmaMatrix(uint64_t bits)
      : start_(field(bits, 0)), leading_(field(bits, 16)), stride_(field(bits, 32)), line_(line_of(bits)) {
    if ((bits >> 49 & 7) != 0) fail("a matrix descriptor with an offset of its base");
    if (start_ % (8 * line_) >= (along_mn ? 1 : line_)) fail("a matrix descriptor that begins within an atom");
  }

  // Row or column `mn`, all of k.
  std::array<Wide<Value>, k> row(int mn) const {
    constexpr int size = sizeof(Value);
    const int values = static_cast<int>(line_) / size;
    std::array<Value, k> found;
    auto* const to = reinterpret_cast<char*>(&found);
    if constexpr (along_mn) {
      for (int i = 0; i < k; ++i) {
        read(to + i * size, start_ + mn / values * leading_ + i / 8 * stride_ + i % 8 * line_ + mn % values * size,
             size);
      }
    } else {
      for (int i = 0; i < k * size; i += 16) read(to + i, start_ + mn / 8 * stride_ + mn % 8 * line_ + i, 16);
    }
    std::array<Wide<Value>, k> wide;
    for (int i = 0; i < k; ++i) wide[i] = widen(found[i]);
    return wide;
  }

 private:
  static uint32_t field(uint64_t bits, int shift) { return static_cast<uint32_t>(bits >> shift & 0x3fff) << 4; }
  static uint32_t line_of(uint64_t bits) {
    const auto mode = static_cast<int>(bits >> 62);
    if (mode == 0) fail("a matrix descriptor without a swizzle: not emulated");
    return 256 >> mode;
  }

  void read(char* to, uint32_t at, int bytes) const {
    read_async(at ^ (at / 128 & (line_ / 16 - 1)) * 16, to, static_cast<size_t>(bytes));
  }

  uint32_t start_, leading_, stride_, line_;
};

// The two rows of a that a thread multiplies.
template <class Kind>
using WgmmaRows = std::array<std::array<Wide<WgmmaValue<typename Kind::A>>, Kind::k>, 2>;

// Adds to the sums of this thread.
template <class Kind, class Register, int registers>
void add_wgmma(Register* d, const WgmmaRows<Kind>& a, uint64_t b, bool adds) {
  constexpr bool along_mn = Kind::b_major == warpsmith::Major::mn;
  const WgmmaMatrix<typename Kind::B, along_mn, Kind::k> columns(b);
  constexpr int n = warpsmith::WgmmaShape<Kind, Register, registers>::n;
  using Sum = typename Kind::Sum;
  using Long = Total<WgmmaValue<typename Kind::A>>;
  auto* const sums = reinterpret_cast<Sum*>(d);  // in the order of d[4 j + i], packed or not
  const int t = lane() % 4;
  for (int j = 0; j < n / 8; ++j) {
    for (int right = 0; right < 2; ++right) {
      const auto column = columns.row(8 * j + 2 * t + right);
      for (int below = 0; below < 2; ++below) {
        Long total{};
        for (int i = 0; i < Kind::k; ++i) total += Long{a[below][i]} * Long{column[i]};
        Sum& sum = sums[4 * j + 2 * below + right];
        if constexpr (std::is_same_v<Sum, int32_t>) {
          sum = static_cast<int32_t>((adds ? Long{sum} : 0) + total);
        } else {
          sum = Sum(static_cast<float>((adds ? static_cast<double>(static_cast<float>(sum)) : 0.0) + total));
        }
      }
    }
  }
}

inline int row_in_warpgroup() {
  const auto thread = static_cast<int>(place().thread.x);
  return thread / 32 % 4 * 16 + lane() / 4;
}

inline void check_same(uint64_t descriptor) {
  const auto all = exchange(descriptor);
  for (const uint64_t other : all.of) {
    if (other != descriptor) fail("lanes of wgmma with other matrix descriptors");
  }
}

}  // namespace emu

namespace warpsmith::ptx {

inline void wgmma_fence() { emu::fence_products(); }
inline void wgmma_commit() { emu::commit_products(); }

template <int pending, class... Sums>
void wgmma_wait(Sums&...) {
  emu::wait_products(pending);
  emu::exchange('\0');  // a warp is done as a whole
}

template <class Register>
void pin(Register&) {}

template <class Kind, class Register, int registers>
void wgmma(Register (&d)[registers], uint64_t a, uint64_t b, bool adds) {
  emu::check_same(a);
  emu::check_same(b);
  Register* const to = d;
  emu::multiply_later([=] {
    const emu::WgmmaMatrix<typename Kind::A, Kind::a_major == Major::mn, Kind::k> rows(a);
    const int row = emu::row_in_warpgroup();
    emu::add_wgmma<Kind, Register, registers>(to, {rows.row(row), rows.row(row + 8)}, b, adds);
  });
}

template <class Kind, class Register, int registers>
void wgmma(Register (&d)[registers], const uint32_t (&a)[4], uint64_t b, bool adds) {
  using Value = emu::WgmmaValue<typename Kind::A>;
  emu::check_same(b);
  struct Words {
    uint32_t of[4];
  } mine;
  std::memcpy(&mine, a, sizeof(mine));
  const auto warp = emu::exchange(mine);
  constexpr int e = 4 / sizeof(Value);
  // Not captured by value: g++ 12.2 clears bytes of arrays of arrays for the padding of a closure that holds them.
  const auto rows = std::make_shared<emu::WgmmaRows<Kind>>();
  for (int word = 0; word < 8; ++word) {
    const auto& from = warp.of[emu::lane() / 4 * 4 + word % 4];
    for (int below = 0; below < 2; ++below) {
      Value values[e];
      std::memcpy(static_cast<void*>(values), &from.of[word / 4 * 2 + below], 4);
      for (int i = 0; i < e; ++i) (*rows)[below][word * e + i] = emu::widen(values[i]);
    }
  }
  Register* const to = d;
  emu::multiply_later([=] { emu::add_wgmma<Kind, Register, registers>(to, *rows, b, adds); });
}

inline void mbarrier_wait_unread(uint64_t* barrier, int parity) { emu::barrier_wait_unread(barrier, parity); }

}  // namespace warpsmith::ptx
