// std::min, std::max, std::swap, a clamp, the least of many: nearly all that a kernel and its launch want of <algorithm>,
// whose C++20 ranges would cost every rung a second of the compiler.
#pragma once

#if __has_include(<bits/stl_algobase.h>)
#include <bits/stl_algobase.h>  // libstdc++'s own part of it
#else
#include <algorithm>
#endif

namespace warpsmith {

// `value`, or the bound that it lies beyond.
template <class T>
constexpr T clamp(T value, T least, T most) {
  return value < least ? least : (most < value ? most : value);
}

// The least and the greatest of several values of one type.
template <class T, class... More>
constexpr T min_of(T first, More... more) {
  ((first = std::min<T>(first, more)), ...);
  return first;
}

template <class T, class... More>
constexpr T max_of(T first, More... more) {
  ((first = std::max<T>(first, more)), ...);
  return first;
}

}  // namespace warpsmith
