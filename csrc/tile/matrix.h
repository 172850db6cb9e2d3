// Matrices in global memory, as the operands of a product.
#pragma once

#include <cstdint>

#include "host/dtype.h"

namespace warpsmith {

// Which of its rows or columns are contiguous.
enum class Order : int { rows, columns };

struct Matrix {
  const void* data;
  int64_t ld;     // elements from one row to the next (Order::rows) or column to the next; 0 where there is one only
  int64_t batch;  // elements from one matrix of the batch to the next; 0 where the whole batch shares one
  Order order;
};

// Whether a matrix of rows x cols splits into accesses of `bytes`, none of which crosses the end of a row or column.
inline bool in_packs(const Matrix& x, int64_t rows, int64_t cols, Dtype dtype, int bytes) {
  const int64_t size = size_of(dtype), extent = x.order == Order::rows ? cols : rows;
  return reinterpret_cast<uintptr_t>(x.data) % bytes == 0 && x.ld * size % bytes == 0 && x.batch * size % bytes == 0 &&
         extent * size % bytes == 0;
}

}  // namespace warpsmith
