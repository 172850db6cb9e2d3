// Causal rows: how far they reach, and zeros for the rest.
#pragma once

#include <cstdint>

#include "device/fast_divide.h"
#include "device/vec.h"

namespace warpsmith {

// Columns up to the diagonal in a row of matrices [queries, cols]: query i sees keys up to i + cols - queries.
// Int: int where row and queries.divisor are smaller than 2^31, and cols is at most 2^30; otherwise int64_t.
template <class Int>
__device__ __forceinline__ Int causal_columns(Int row, Int cols, const FastDivide& queries) {
  const Int count = static_cast<Int>(queries.divisor);
  const Int query = row - queries.quotient_as(row) * count;
  return max(Int{0}, min(query - count + 1 + cols, cols));
}

template <class T>
__device__ __forceinline__ void write_zeros(T* y) {
  Pack<T> zeros;
  reinterpret_cast<uint4&>(zeros) = uint4{};
  store<Cache::streaming>(y, zeros);
}

}  // namespace warpsmith
