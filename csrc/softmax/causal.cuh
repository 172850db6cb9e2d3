// Causal rows: how far they reach, and zeros for the rest.
#pragma once

#include <cstdint>

#include "device/fast_divide.h"
#include "device/vec.h"

namespace warpsmith {

// Columns up to the diagonal in a row of matrices [queries, cols]: query i sees keys up to i + cols - queries.
__device__ __forceinline__ int64_t causal_columns(int64_t row, int64_t cols, const FastDivide& queries) {
  const int64_t count = static_cast<int64_t>(queries.divisor);
  const int64_t query = row - static_cast<int64_t>(queries.quotient(row)) * count;
  return max(int64_t{0}, min(query + 1 + cols - count, cols));
}

template <class T>
__device__ __forceinline__ void write_zeros(T* y) {
  Pack<T> zeros;
  reinterpret_cast<uint4&>(zeros) = uint4{};
  store<Cache::streaming>(y, zeros);
}

}  // namespace warpsmith
