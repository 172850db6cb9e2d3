// What the rungs of scaled_masked_softmax share: the totals of a row, its write-out.
#pragma once

#include <tuple>

#include "host/registry.h"
#include "softmax/logits.cuh"
#include "softmax/scaled_masked_softmax/scaled_masked_softmax.h"

namespace warpsmith {

template <class T>
struct ScaledMaskedSoftmaxRows {
  LogitRows<T> logits;
  T* y;        // [rows, cols]
  float* lse;  // [rows] or null
  Dropout dropout;

  explicit ScaledMaskedSoftmaxRows(const ScaledMaskedSoftmaxArgs& a)
      : logits(a.logits), y(static_cast<T*>(a.y)), lse(a.lse), dropout(a.dropout) {}
};

// Of some of a row's logits: the maximum, and the sum of e^(z - maximum).
struct RowTotals {
  float most = -kInfinity;
  float sum = 0.0f;

  // As part of a row whose maximum is `all`.
  __device__ __forceinline__ float weight(float all) const { return exp_below(most, all); }
};

__device__ __forceinline__ void write_lse(float* lse, int64_t row, const RowTotals& totals) {
  if (lse != nullptr) lse[row] = totals.most == kInfinity ? kInfinity : totals.most + logf(totals.sum);
}

// Joins the totals of `lanes` neighbours, each with its own.
template <int lanes = kWarp>
__device__ __forceinline__ RowTotals join_lanes(const RowTotals& theirs) {
  RowTotals all;
  all.most = warp_reduce<lanes>(theirs.most, MaxNan{});
  all.sum = warp_reduce<lanes>(theirs.sum * theirs.weight(all.most));
  return all;
}

// Joins the totals of the block's warps; every thread gets them.
__device__ __forceinline__ RowTotals join_warps(const RowTotals& own, RowTotals (&partial)[kWarp]) {
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) return own;
  if (lane == 0) partial[threadIdx.x / kWarp] = own;
  __syncthreads();
  return join_lanes(lane < warps ? partial[lane] : RowTotals{});
}

// A pack of y from its exponentials; `left` of them lie before the end of the live columns, and NaN stays there.
template <class T>
__device__ __forceinline__ void write_pack(const ScaledMaskedSoftmaxRows<T>& v, int64_t at, int64_t left,
                                           float (&e)[kPack<T>], float factor) {
  constexpr int kWidth = kPack<T>;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) e[j] *= factor;
  if (left < kWidth) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) e[j] = j >= left ? 0.0f : e[j];
  }
  if (v.dropout.active) {
    bool kept[kWidth];
    v.dropout.keeps(kept, at);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) e[j] = kept[j] ? e[j] : 0.0f;
  }
  Pack<T> y;
  from_float(y, e);
  store<Cache::streaming>(v.y + at, y);
}

// One row from its threads' registers. join: makes the totals of the threads that shuffles reach those of the row.
template <class Tile, class Biased, class T, class Join>
__device__ __forceinline__ void softmax_row(const ScaledMaskedSoftmaxRows<T>& v, Join join) {
  constexpr int kPacks = Tile::packs, kWidth = kPack<T>;
  LogitPlace<Tile> place;
  if constexpr (Biased::value) place.row = v.logits.turn(place.row);
  const LogitRow<T> r = v.logits.template row<int>(place.row);
  const int live = static_cast<int>(r.live);
  float z[kPacks][kWidth];
  read_logits<Tile, Biased>(z, v.logits, r, place);

  // maximum
  RowTotals own;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (place.template jumps_over<T>(i, live)) continue;
    float most[kWidth / 2];
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) most[j] = ptx::max_nan(z[i][j], z[i][j + kWidth / 2]);
#pragma unroll
    for (int n = kWidth / 4; n > 0; n /= 2) {
#pragma unroll
      for (int j = 0; j < n; ++j) most[j] = ptx::max_nan(most[j], most[j + n]);
    }
    own.most = ptx::max_nan(own.most, most[0]);
  }
  own.most = warp_reduce<Tile::group>(own.most, MaxNan{});

  // exponentials and their sum, in four chains of additions
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (place.template jumps_over<T>(i, live)) continue;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      z[i][j] = exp_below(z[i][j], own.most);
      sums[j % 4] += z[i][j];
    }
  }
  own.sum = warp_reduce<Tile::group>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  const RowTotals all = join(own);
  if (place.row >= v.logits.rows) return;
  if (place.lane == 0) write_lse(v.lse, place.row, all);

  // write
  const float factor = own.weight(all.most) * reciprocal_sum(all.sum) * v.dropout.scale;
  const int64_t start = place.row * v.logits.cols + place.template col<T>(0);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int col = place.template col<T>(i), first = place.template first_col<T>(i);
    if (col >= v.logits.cols) continue;
    if (first < live) {
      write_pack(v, start + first, live - col, z[i], factor);
    } else {
      write_zeros(v.y + start + first);
    }
  }
}

}  // namespace warpsmith
