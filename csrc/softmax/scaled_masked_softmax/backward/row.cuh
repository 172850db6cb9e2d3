// What the rungs of scaled_masked_softmax_backward share: typed arguments, one row from registers.
#pragma once

#include <tuple>

#include "device/block.h"
#include "device/convert.h"
#include "host/registry.h"
#include "row/packed.h"
#include "softmax/causal.cuh"
#include "softmax/logit_tile.cuh"
#include "softmax/scaled_masked_softmax/backward/scaled_masked_softmax_backward.h"

namespace warpsmith {

template <class T>
struct ScaledMaskedSoftmaxBackwardRows {
  const T* grad;  // [rows, cols], grad_stride elements apart
  const T* y;     // [rows, cols], y_stride elements apart
  T* dx;          // [rows, cols]
  FastDivide queries;
  int64_t rows, cols, grad_stride, y_stride;
  float scale;
  bool causal;
  bool beyond_l2;  // grad and y alone would fill L2

  explicit ScaledMaskedSoftmaxBackwardRows(const ScaledMaskedSoftmaxBackwardArgs& a)
      : grad(static_cast<const T*>(a.grad)),
        y(static_cast<const T*>(a.y)),
        dx(static_cast<T*>(a.dx)),
        queries(static_cast<uint64_t>(a.queries)),
        rows(a.rows),
        cols(a.cols),
        grad_stride(a.grad_stride),
        y_stride(a.y_stride),
        scale(a.scale),
        causal(a.causal),
        beyond_l2(2 * a.rows * a.cols * size_of(a.dtype) >= kL2Bytes) {}

  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ __forceinline__ int64_t live_columns(int64_t row) const {
    return causal ? causal_columns(row, cols, queries) : cols;
  }
};

// Zeroes what a pack holds from element `left` on.
template <class T, int n>
__device__ __forceinline__ void cut_off(Vec<T, n>& pack, int64_t left) {
#pragma unroll
  for (int j = 0; j < n; ++j) pack[j] = j >= left ? from_float<T>(0.0f) : pack[j];
}

template <class T>
__device__ __forceinline__ float dot(const Pack<T>& grad, const Pack<T>& y) {
  float g[kPack<T>], values[kPack<T>], sum = 0.0f;
  to_float(g, grad);
  to_float(values, y);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) sum = fmaf(g[j], values[j], sum);
  return sum;
}

// dx of a pack; `left` of its elements lie before the end of the live columns, and NaN stays there.
template <class T>
__device__ __forceinline__ void write_gradient(T* dx, const Pack<T>& grad, const Pack<T>& y, float scale, float sum,
                                               int64_t left) {
  float g[kPack<T>], values[kPack<T>];
  to_float(g, grad);
  to_float(values, y);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) values[j] *= scale * (g[j] - sum);
  Pack<T> out;
  from_float(out, values);
  if (left < kPack<T>) cut_off(out, left);
  store<Cache::streaming>(dx, out);
}

// One row from its threads' registers. reduce: sums over those who share the row.
template <class Tile, class T, class Reduce>
__device__ __forceinline__ void softmax_backward_row(const ScaledMaskedSoftmaxBackwardRows<T>& v, Reduce reduce) {
  constexpr int kPacks = Tile::packs;
  const LogitPlace<Tile> place;
  const int live = place.row < v.rows ? static_cast<int>(v.live_columns(place.row)) : 0;
  const int offset = place.template col<T>(0);

  // load
  const T* gGrad = v.grad + place.row * v.grad_stride + offset;
  const T* gY = v.y + place.row * v.y_stride + offset;
  const uint64_t policy = v.load_policy();
  Pack<T> grad[kPacks], y[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    reinterpret_cast<uint4&>(grad[i]) = reinterpret_cast<uint4&>(y[i]) = uint4{};
    if (place.template col<T>(i) >= live) continue;
    load_with_policy(grad[i], gGrad + place.template first_col<T>(i), policy);
    load_with_policy(y[i], gY + place.template first_col<T>(i), policy);
  }

  // sum of products
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (place.template first_col<T>(i) >= live) continue;
    const int left = live - place.template col<T>(i);
    if (left < kPack<T>) {
      cut_off(grad[i], left);
      cut_off(y[i], left);
    }
    sum += dot<T>(grad[i], y[i]);
    keep_packed(grad[i]);
    keep_packed(y[i]);
  }
  sum = reduce(sum);
  if (place.row >= v.rows) return;

  // write
  T* gDx = v.dx + place.row * v.cols + offset;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int col = place.template col<T>(i), first = place.template first_col<T>(i);
    if (col >= v.cols) continue;
    if (first < live) {
      write_gradient(gDx + first, grad[i], y[i], v.scale, sum, live - col);
    } else {
      write_zeros(gDx + first);
    }
  }
}

}  // namespace warpsmith
