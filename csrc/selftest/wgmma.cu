// device/ptx/wgmma.h and device/matrix_descriptor.h: every kind of product; a from shared memory, along k and along m, and
// from registers; b along k and along n; lines of 128, 64 and 32 bytes; what the sums start from; NaN and infinity. Every
// number of columns: wgmma_columns.cu and wgmma_columns_of_bytes.cu. Passes without running but on sm_90.
#include <limits>

#include "selftest/wgmma.cuh"

namespace warpsmith::selftest {
namespace {

// Both ways for a, of a few numbers of columns.
template <class Kind>
std::string check_kind(std::string_view what) {
  constexpr Form kRegisters = {.registers = true};
  return check<Kind>(what, {product_of<Case<Kind, 8>>(), product_of<Case<Kind, 96>>(), product_of<Case<Kind, 256>>(),
                            product_of<Case<Kind, 8, kRegisters>>(), product_of<Case<Kind, 64, kRegisters>>()});
}

template <class T, Line line>
std::string check_lines(std::string_view name) {
  constexpr Major k = Major::k, mn = Major::mn;
  const std::string what = text(name, " in lines of ", static_cast<int>(line), " bytes");
  const auto along = [&]<Major a, Major b, int n, bool registers = false>(const char* which) {
    using Kind = WgmmaKind<T, T, float, a, b>;
    return check<Kind>(what + which, {product_of<Case<Kind, n, Form{line, registers}>>()});
  };
  return first_failure([&] { return along.template operator()<k, k, 64>(" along k"); },
                       [&] { return along.template operator()<mn, k, 64>(", a along m"); },
                       [&] { return along.template operator()<k, mn, 128>(", b along n"); },
                       [&] { return along.template operator()<k, mn, 64, true>(", b along n"); },
                       [&] { return along.template operator()<mn, mn, 192>(", a along m, b along n"); });
}

template <class T>
std::string check_majors(std::string_view name) {
  return first_failure([&] { return check_lines<T, Line::of_128>(name); },
                       [&] { return check_lines<T, Line::of_64>(name); },
                       [&] { return check_lines<T, Line::of_32>(name); });
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
  return check_values("bf16, not all finite", product_of<Tested>(), a, b, true);
}

std::string run() {
  if (device_info(current_device()).sm != kSm) return "";
  using Bytes = WgmmaKind<int8_t, int8_t, int32_t>;
  return first_failure(
      [] { return check_kind<WgmmaKind<bf16>>("bf16"); }, [] { return check_kind<WgmmaKind<f16>>("f16"); },
      [] { return check_kind<WgmmaKind<f16, f16, f16>>("f16 in f16"); },
      [] { return check_kind<WgmmaKind<Tf32Operand>>("tf32"); }, [] { return check_kind<WgmmaKind<e4m3>>("e4m3"); },
      [] { return check_kind<WgmmaKind<e5m2>>("e5m2"); },
      [] { return check_kind<WgmmaKind<e4m3, e5m2>>("e4m3 and e5m2"); },
      [] { return check_kind<WgmmaKind<e5m2, e4m3, f16>>("e5m2 and e4m3 in f16"); },
      [] { return check_kind<Bytes>("s8"); }, [] { return check_majors<f16>("f16"); },
      [] { return check_majors<bf16>("bf16"); }, check_not_finite);
}

const SelfTestEntry entered{"wgmma", run};

}  // namespace
}  // namespace warpsmith::selftest
