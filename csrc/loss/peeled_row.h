// Rows that start anywhere: between the few elements before its first 16-byte boundary and the few after its last, every
// row is aligned packs. A vocabulary of 50257 leaves only every eighth row of bf16 logits aligned.
#pragma once

#include <cstdint>

#include "host/dtype.h"
#include "row/rows.h"

namespace warpsmith {

// Columns are counted in 32 bits, with room for a step beyond the last.
inline constexpr int64_t kMostPeeledCols = int64_t{1} << 30;

// Whether packs of `a` and of `b` lie alike in every row, so that what one pack brings another can take away.
inline bool peel_alike(const void* a, int64_t a_stride, const void* b, int64_t b_stride, int64_t rows, Dtype dtype) {
  const auto offset = reinterpret_cast<uintptr_t>(a) - reinterpret_cast<uintptr_t>(b);
  return offset % 16 == 0 && (rows == 1 || (a_stride - b_stride) * size_of(dtype) % 16 == 0);
}

template <class T>
struct PeeledRow {
  // Threads that see to the edges, one element each.
  static constexpr int kEdges = 2 * kPack<T>;

  int packs;
  int head, tail;  // elements before and after the packs, fewer than a pack each

  __device__ __forceinline__ PeeledRow(const T* row, int cols) {
    constexpr unsigned kWidth = kPack<T>;
    const unsigned past = static_cast<unsigned>(reinterpret_cast<uintptr_t>(row)) / sizeof(T) % kWidth;
    const int before = static_cast<int>((kWidth - past) % kWidth);
    head = before < cols ? before : cols;
    const unsigned rest = static_cast<unsigned>(cols - head);
    packs = static_cast<int>(rest / kWidth);
    tail = static_cast<int>(rest % kWidth);
  }

  // The first column of a pack.
  __device__ __forceinline__ int col(int pack) const { return head + pack * kPack<T>; }

  // The column that edge thread i sees to, -1 for none.
  __device__ __forceinline__ int edge(int i) const {
    if (i < head) return i;
    const int j = i - kPack<T>;
    return j >= 0 && j < tail ? col(packs) + j : -1;
  }
};

}  // namespace warpsmith
