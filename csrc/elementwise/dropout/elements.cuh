// What the rungs of dropout share: typed operands; a word of the mask, or a pack, at a time.
#pragma once

#include "device/convert.h"
#include "device/fast_divide.h"
#include "device/warp.h"
#include "elementwise/dropout/dropout.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {

template <class T>
struct DropoutView {
  const T* x;         // [n]
  const T* bias;      // [cols] or null
  const T* residual;  // [n] or null
  T* y;               // [n]
  uint32_t* mask;     // [mask_words(n)]
  int64_t n;
  FastDivide per_row;  // elements, or accesses of `width` of them
  Dropout dropout;

  DropoutView(const DropoutArgs& a, int width)
      : x(static_cast<const T*>(a.x)),
        bias(static_cast<const T*>(a.bias)),
        residual(static_cast<const T*>(a.residual)),
        y(static_cast<T*>(a.y)),
        mask(a.mask),
        n(a.n),
        per_row(static_cast<uint64_t>(a.bias == nullptr ? 1 : a.cols / width)),
        dropout(a.dropout) {}

  // The place of access i in its row.
  __device__ __forceinline__ int64_t in_row(int64_t i) const {
    return i - static_cast<int64_t>(per_row.quotient(static_cast<uint64_t>(i)) * per_row.divisor);
  }
};

// An element that is kept, or not, before the residual joins.
__device__ __forceinline__ float dropped(float value, bool kept, float scale) { return kept ? value * scale : 0.0f; }

// Element i in lane i % 32, whose warp leaves a word of the mask; those from n on do not exist. `col` is its column.
template <class T>
__device__ __forceinline__ void drop_word(const DropoutView<T>& v, int64_t i, int64_t col) {
  const bool exists = i < v.n;
  const bool kept = exists && (!v.dropout.active || v.dropout.keeps(static_cast<uint64_t>(i)));
  const uint32_t word = __ballot_sync(kAllLanes, kept);
  if (!exists) return;
  float value = to_float(v.x[i]);
  if (v.bias != nullptr) value += to_float(v.bias[col]);
  value = dropped(value, kept, v.dropout.scale);
  if (v.residual != nullptr) value += to_float(v.residual[i]);
  v.y[i] = from_float<T>(value);
  if (i % kMaskBits == 0) v.mask[i / kMaskBits] = word;
}

// A pack of each operand; those that a call does not have are not set.
template <class T>
struct DropoutPacks {
  Pack<T> x, bias, residual;
};

// The result in the place of x; bit i of `bits` says whether element i is kept.
template <class T>
__device__ __forceinline__ void drop_pack(DropoutPacks<T>& packs, bool biased, bool added, uint32_t bits, float scale) {
  constexpr int kWidth = kPack<T>;
  float values[kWidth], other[kWidth];
  to_float(values, packs.x);
  if (biased) {
    to_float(other, packs.bias);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += other[i];
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = dropped(values[i], bits >> i & 1, scale);
  if (added) {
    to_float(other, packs.residual);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += other[i];
  }
  from_float(packs.x, values);
}

// What is kept of packs of n, from `first` on and `step` apart, a bit for each element: one call of the generator for four
// of them. All packs are drawn for together, so that the generator's keys come into registers once.
template <int n, int packs>
__device__ __forceinline__ void draw(uint32_t (&bits)[packs], const Dropout& dropout, int64_t first, int64_t step = 0) {
#pragma unroll
  for (int i = 0; i < packs; ++i) bits[i] = (1u << n) - 1;
  if (!dropout.active) return;
  bool kept[packs][n];
#pragma unroll
  for (int i = 0; i < packs; ++i) dropout.keeps(kept[i], static_cast<uint64_t>(first + i * step) * n);
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    bits[i] = 0;
#pragma unroll
    for (int j = 0; j < n; ++j) bits[i] |= static_cast<uint32_t>(kept[i][j]) << j;
  }
}

// The bits of a pack into the mask, a byte for eight elements: two lanes join theirs where a pack is four. By all lanes of
// a warp, whose packs are neighbours, the first of them even.
template <int n>
__device__ __forceinline__ void keep_bits(uint32_t* mask, int64_t pack, uint32_t bits, bool exists) {
  auto* bytes = reinterpret_cast<uint8_t*>(mask);
  if constexpr (n == 8) {
    if (exists) bytes[pack] = static_cast<uint8_t>(bits);
  } else {
    static_assert(n == 4, "packs of 16 bytes");
    bits |= __shfl_down_sync(kAllLanes, bits, 1) << 4;
    if (exists && pack % 2 == 0) bytes[pack / 2] = static_cast<uint8_t>(bits);
  }
}

// Whole words of the mask go by packs; these are the elements after them, by one warp.
template <class T>
__device__ __forceinline__ void drop_rest(const DropoutView<T>& v) {
  const int64_t i = v.n / kMaskBits * kMaskBits + threadIdx.x;
  if (blockIdx.x != gridDim.x - 1 || threadIdx.x >= kMaskBits || v.n % kMaskBits == 0) return;
  constexpr int kWidth = kPack<T>;
  drop_word(v, i, v.in_row(i / kWidth) * kWidth + i % kWidth);
}

}  // namespace warpsmith
