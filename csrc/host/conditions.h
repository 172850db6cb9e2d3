// What rungs ask of the sizes of a call: nullptr where it is met, otherwise the reason why not. A message takes its number
// from the limit that is compared with. `takes` of a rung joins its conditions:
//
//   return unmet({needs_packs(a), needs_grid_rows(a.rows), needs_row_bytes<64 * 1024>(a.cols, a.dtype)});
#pragma once

#include <cstdint>
#include <initializer_list>

#include "host/dtype.h"

namespace warpsmith {

// The first condition that is not met, in the order in which Python asks; nullptr where all are.
constexpr const char* unmet(std::initializer_list<const char*> reasons) {
  for (const char* reason : reasons) {
    if (reason != nullptr) return reason;
  }
  return nullptr;
}

// `takes` of a rung that takes every call.
template <class Args>
const char* takes_any(const Args&) {
  return nullptr;
}

inline constexpr int64_t kMostRows = (int64_t{1} << 31) - 1;  // what one grid dimension can count

constexpr const char* needs_grid_rows(int64_t rows) {
  return rows <= kMostRows ? nullptr : "needs at most 2^31 - 1 rows";
}

namespace detail {

// "needs rows of at most 64 KiB", put together by the compiler.
struct LimitText {
  char text[64] = {};

  constexpr LimitText(const char* before, int64_t limit, const char* after) {
    int at = 0;
    for (; *before != '\0'; ++before) text[at++] = *before;
    int64_t unit = 1;
    while (limit / unit >= 10) unit *= 10;
    for (; unit > 0; unit /= 10) text[at++] = static_cast<char>('0' + limit / unit % 10);
    for (; *after != '\0'; ++after) text[at++] = *after;
  }
};

constexpr LimitText row_bytes_text(int64_t most) {
  constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
  const char* before = "needs rows of at most ";
  if (most % kMiB == 0) return {before, most / kMiB, " MiB"};
  return most % kKiB == 0 ? LimitText(before, most / kKiB, " KiB") : LimitText(before, most, " bytes");
}

}  // namespace detail

template <int64_t most>
const char* needs_row_bytes(int64_t cols, Dtype dtype) {
  static constexpr detail::LimitText kText = detail::row_bytes_text(most);
  return cols * size_of(dtype) <= most ? nullptr : kText.text;
}

template <int64_t most>
const char* needs_columns(int64_t cols) {
  static constexpr detail::LimitText kText{"needs at most ", most, " columns"};
  return cols <= most ? nullptr : kText.text;
}

}  // namespace warpsmith
