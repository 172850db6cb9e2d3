// What becomes of finished sums: n neighbours of a row at a time.
#pragma once

#include "device/vec.h"
#include "gemm/epilogue.cuh"
#include "gemm/fused_linear/fused_linear.h"

namespace warpsmith {

template <class T, int n>
__device__ __forceinline__ void put_row(T* to, const float (&values)[n]) {
  Vec<T, n> out;
  from_float(out, values);
  store(to, out);
}

// In packs of 16 bytes at most.
template <class T, int n>
__device__ __forceinline__ void add_row(float (&to)[n], const T* from) {
  constexpr int kMost = 16 / static_cast<int>(sizeof(T)), kEach = n < kMost ? n : kMost;
#pragma unroll
  for (int i = 0; i < n; i += kEach) {
    Vec<T, kEach> values;
    load(values, from + i);
#pragma unroll
    for (int j = 0; j < kEach; ++j) to[i + j] += to_float(values[j]);
  }
}

// Of columns from `col` on.
template <class T, int n>
__device__ __forceinline__ void add_bias(float (&to)[n], const FusedArgs& p, const void* bias, int64_t col) {
  if (bias == nullptr) return;
  p.wide_bias ? add_row(to, static_cast<const float*>(bias) + col) : add_row(to, static_cast<const T*>(bias) + col);
}

// Which of q, k and v a column of the product belongs to, and its column there.
struct HeadColumn {
  int part = 0;
  int64_t col;

  __host__ __device__ HeadColumn(const HeadResults& heads, int64_t of_product) : col(of_product) {
    while (part < 2 && col >= heads.heads[part] * heads.size) col -= heads.heads[part++] * heads.size;
  }
};

template <class T>
__device__ __forceinline__ T* place_of_head(const HeadResults& heads, int64_t row, int64_t of_product) {
  const HeadColumn at(heads, of_product);
  const int64_t count = heads.heads[at.part];
  T* to = static_cast<T*>(heads.data[at.part]);
  if (!heads.heads_first) return to + row * count * heads.size + at.col;
  const int64_t sequence = row / heads.rows, head = at.col / heads.size;
  return to + ((sequence * count + head) * heads.rows + row % heads.rows) * heads.size + at.col % heads.size;
}

// The largest magnitude as bits of f32, of which NaN are the largest: in the order of whole numbers.
template <int n>
__device__ __forceinline__ unsigned largest_bits(const float (&values)[n]) {
  unsigned most = 0;
#pragma unroll
  for (const float value : values) most = max(most, __float_as_uint(value) & 0x7fffffffu);
  return most;
}

// As it is among values rounded to T.
template <class T>
__device__ __forceinline__ void note_largest(unsigned* amax, unsigned most) {
  atomicMax(amax, __float_as_uint(to_float(from_float<T>(__uint_as_float(most)))));
}

// The sum of a row of x along k.
template <class T>
__device__ __forceinline__ void leave_row_sum(const FusedArgs& p, int64_t row, float sum) {
  if (p.wide_bias) {
    static_cast<float*>(p.row_sums)[row] = sum;
  } else {
    static_cast<T*>(p.row_sums)[row] = from_float<T>(sum);
  }
}

// `values`: sums of x w; `up`: of a gate's other product. Neighbours belong to one head. Returns the largest of what it
// stores, not rounded, for `note_largest`.
template <Ends ends, class T, int n>
__device__ __forceinline__ unsigned leave(const FusedArgs& p, float (&values)[n], [[maybe_unused]] float (&up)[n],
                                          int64_t row, int64_t col) {
  constexpr bool kExact = sizeof(T) == 4;
  const int64_t at = row * p.n + col;
  if constexpr (ends == Ends::add) {
    float* to = static_cast<float*>(p.d) + at;
    constexpr int kStep = n < 4 ? n : 4;
#pragma unroll
    for (int i = 0; i < n; i += kStep) {
      Vec<float, kStep> sums;
      load(sums, to + i);
#pragma unroll
      for (int j = 0; j < kStep; ++j) sums[j] += values[i + j];
      store(to + i, sums);
    }
    return 0;
  } else if constexpr (ends == Ends::gradient) {
    put_row(static_cast<T*>(p.d) + at, values);
    return 0;
  } else {
    if constexpr (ends == Ends::epilogue) {
#pragma unroll
      for (float& value : values) value *= p.alpha;
    }
    add_bias<T>(values, p, p.bias, col);
    if constexpr (ends == Ends::heads) {
      put_row(place_of_head<T>(p.heads, row, col), values);
      return 0;
    }
    if (p.before != nullptr) put_row(static_cast<T*>(p.before) + at, values);
    activate<kExact, n>(p.activation, values);
    if constexpr (ends == Ends::gate) {
      add_bias<T>(up, p, p.up_bias, col);
      if (p.before_up != nullptr) put_row(static_cast<T*>(p.before_up) + at, up);
#pragma unroll
      for (int i = 0; i < n; ++i) values[i] *= up[i];
    } else if (p.residual != nullptr) {
      add_row(values, static_cast<const T*>(p.residual) + at);
    }
    put_row(static_cast<T*>(p.d) + at, values);
    return largest_bits(values);
  }
}

}  // namespace warpsmith
