// The small floating formats by their definition, in double: written apart from device/convert.h, so that the two can be
// held against each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "host/dtype.h"

namespace warpsmith::selftest {

// sign | exponent | mantissa.
struct Format {
  std::string_view name;
  int exponent_bits, mantissa_bits;
  bool has_infinity;  // the top exponent holds infinity and NaN; otherwise only the topmost code of it is NaN

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  // The first code, without its sign, that is no finite number.
  uint32_t beyond() const {
    const uint32_t all_ones = sign_bit() - 1;
    return has_infinity ? all_ones - ((1u << mantissa_bits) - 1) : all_ones;
  }
  bool is_nan(uint32_t code) const {
    const uint32_t magnitude = code & (sign_bit() - 1);
    return has_infinity ? magnitude > beyond() : magnitude >= beyond();
  }
};

template <class T>
constexpr Format format_of();
template <>
constexpr Format format_of<f16>() {
  return {"f16", 5, 10, true};
}
template <>
constexpr Format format_of<bf16>() {
  return {"bf16", 8, 7, true};
}
template <>
constexpr Format format_of<e4m3>() {
  return {"e4m3", 4, 3, false};
}
template <>
constexpr Format format_of<e5m2>() {
  return {"e5m2", 5, 2, true};
}

inline double decode_reference(const Format& format, uint32_t code) {
  const uint32_t magnitude = code & (format.sign_bit() - 1);
  const double sign = (code & format.sign_bit()) ? -1.0 : 1.0;
  if (format.is_nan(code)) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude >= format.beyond()) return sign * std::numeric_limits<double>::infinity();
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const double mantissa = magnitude & ((1u << format.mantissa_bits) - 1);
  const double one = std::ldexp(1.0, format.mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias() - format.mantissa_bits);
  return sign * std::ldexp(one + mantissa, exponent - format.bias() - format.mantissa_bits);
}

// Rounds to nearest, ties to even, without saturation: what rounds beyond the largest finite value becomes infinity, or
// NaN where the format has none.
inline uint32_t encode_reference(const Format& format, float x) {
  const uint32_t sign = std::signbit(x) ? format.sign_bit() : 0;
  if (std::isnan(x)) return sign | (format.sign_bit() - 1);
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude == 0.0) return sign;
  if (std::isinf(magnitude)) return sign | format.beyond();
  const int exponent = std::max(std::ilogb(magnitude), 1 - format.bias());
  // In units of the last mantissa bit at this exponent.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // A normal number's leading one adds 1 to the exponent field; a carry out of the mantissa adds the next.
  const uint32_t code =
      (static_cast<uint32_t>(exponent + format.bias() - 1) << format.mantissa_bits) + static_cast<uint32_t>(units);
  return sign | std::min(code, format.beyond());
}

}  // namespace warpsmith::selftest
