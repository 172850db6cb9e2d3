// What a row-wise kernel asks of its operands: whether wide accesses tile the rows, and typed dispatch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "host/conditions.h"
#include "host/dtype.h"
#include "host/min_max.h"

namespace warpsmith {

inline bool is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// Rows that accesses of `width` values tile exactly: every row of `data` starts aligned and ends on a full access.
inline bool tiles_rows(const void* data, int64_t rows, int64_t cols, int64_t stride, Dtype dtype, int width) {
  return cols % width == 0 && (rows == 1 || stride % width == 0) && is_aligned(data, int64_t{width} * size_of(dtype));
}

// A weight is read `width` values at a time, at most 16 bytes in one access.
inline bool tiles_weight(const void* weight, Dtype dtype, int width) {
  const int bytes = width * size_of(dtype);
  return weight == nullptr || is_aligned(weight, bytes < 16 ? bytes : 16);
}

// Calls body.template operator()<T, W>() for the dtypes of x and weight.
template <class Body>
void visit_dtypes(Dtype dtype, Dtype weight_dtype, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, float>) {
      body.template operator()<T, float>();
    } else if (weight_dtype == Dtype::f32) {
      body.template operator()<T, float>();
    } else {
      body.template operator()<T, T>();
    }
  });
}

// Every rung walks rows from blockIdx.x on by gridDim.x, so the grid may stay below its limit.
inline unsigned row_grid(int64_t blocks) { return static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 30)); }

// Threads for a row of `items` with `each` items to a thread: whole warps, at most `most`.
constexpr unsigned row_threads(int64_t items, int each, int most) {
  const int64_t threads = (items + each - 1) / each;
  return static_cast<unsigned>(clamp<int64_t>((threads + 31) / 32 * 32, 32, most));
}

}  // namespace warpsmith
