// Which products wgmma computes (device/ptx/wgmma.h), and what its instructions are called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "host/dtype.h"

namespace warpsmith {

// f32 of which tensor cores ignore the low 13 bits.
struct Tf32Operand {};

enum class Major { k, mn };  // which way the lines of an operand in shared memory run

// Types of a and b and of the sums. Lines of operands of 16 bits run either way, those of all others along k.
template <class A_, class B_ = A_, class Sum_ = float, Major a_ = Major::k, Major b_ = Major::k>
struct WgmmaKind {
  using A = A_;
  using B = B_;
  using Sum = Sum_;
  static constexpr Major a_major = a_, b_major = b_;

  static constexpr bool halves = std::is_same_v<A, f16> || std::is_same_v<A, bf16>;
  static constexpr bool tf32 = std::is_same_v<A, Tf32Operand>, integers = std::is_same_v<A, int8_t>;
  static constexpr bool fp8 = std::is_same_v<A, e4m3> || std::is_same_v<A, e5m2>;
  static constexpr bool fp8_b = std::is_same_v<B, e4m3> || std::is_same_v<B, e5m2>;
  static_assert(halves || tf32 || integers || fp8, "operands of wgmma");
  static_assert(std::is_same_v<A, B> || (fp8 && fp8_b), "only formats of fp8 are mixed");
  static_assert(halves || (a_ == Major::k && b_ == Major::k), "transposed on the way are values of 16 bits alone");
  static_assert(std::is_same_v<Sum, float>
                    ? !integers
                    : (std::is_same_v<Sum, int32_t> ? integers
                                                    : std::is_same_v<Sum, f16> && (std::is_same_v<A, f16> || fp8)),
                "sums in f32, of f16 and fp8 in f16 too, of s8 in s32");

  static constexpr int k = halves ? 16 : (tf32 ? 8 : 32);
  static constexpr bool packs_sums = std::is_same_v<Sum, f16>;  // two to a register
};

namespace detail {

struct Text {
  char text[48] = {};
  int size = 0;

  constexpr void add(const char* more) {
    for (; *more != '\0'; ++more) text[size++] = *more;
  }
  constexpr void add(int number) {
    if (number >= 10) add(number / 10);
    text[size++] = static_cast<char>('0' + number % 10);
  }
};

template <class T>
constexpr const char* wgmma_type() {
  if constexpr (std::is_same_v<T, float>) return ".f32";
  if constexpr (std::is_same_v<T, f16>) return ".f16";
  if constexpr (std::is_same_v<T, bf16>) return ".bf16";
  if constexpr (std::is_same_v<T, Tf32Operand>) return ".tf32";
  if constexpr (std::is_same_v<T, e4m3>) return ".e4m3";
  if constexpr (std::is_same_v<T, e5m2>) return ".e5m2";
  if constexpr (std::is_same_v<T, int8_t>) return ".s8";
  return ".s32";
}

template <class Kind>
constexpr Text wgmma_opcode(int n) {
  Text made;
  made.add("m64n");
  made.add(n);
  made.add("k");
  made.add(Kind::k);
  made.add(wgmma_type<typename Kind::Sum>());
  made.add(wgmma_type<typename Kind::A>());
  made.add(wgmma_type<typename Kind::B>());
  return made;
}

// What follows the operands: signs of a and b, and which of those in shared memory are transposed.
template <class Kind>
constexpr Text wgmma_modes(bool shared_a) {
  Text made;
  if (!Kind::integers) made.add(", 1, 1");
  if (Kind::halves && shared_a) made.add(Kind::a_major == Major::mn ? ", 1" : ", 0");
  if (Kind::halves) made.add(Kind::b_major == Major::mn ? ", 1" : ", 0");
  return made;
}

// As an array of its own, which inline PTX asks for. `make` makes the text.
template <auto make, class = std::make_index_sequence<make().size>>
struct Letters;
template <auto make, size_t... i>
struct Letters<make, std::index_sequence<i...>> {
  static constexpr char text[] = {make().text[i]..., '\0'};
};

template <class Kind, int n, bool shared_a>
struct WgmmaText {
  using Opcode = Letters<[] { return wgmma_opcode<Kind>(n); }>;
  using Modes = Letters<[] { return wgmma_modes<Kind>(shared_a); }>;
};

}  // namespace detail

// Of sums in so many registers.
template <class Kind, class Register, int registers>
struct WgmmaShape {
  static constexpr int n = registers * (Kind::packs_sums ? 4 : 2);
  static_assert(std::is_same_v<Register, std::conditional_t<Kind::packs_sums, uint32_t, typename Kind::Sum>>);
  static_assert(n % 8 == 0 && n >= 8 && n <= 256, "columns of wgmma");
  static_assert(!Kind::integers || n <= 24 || n % 16 == 0, "columns of wgmma of s8");
  using Shared = detail::WgmmaText<Kind, n, true>;
  using Registers = detail::WgmmaText<Kind, n, false>;
};

}  // namespace warpsmith
