// What the rungs of group_norm for contiguous tensors share: groups as rows of packs.
#pragma once

#include "norm/group.cuh"
#include "norm/group_norm/group_norm.h"

namespace warpsmith {

template <class T>
struct GroupNormRows {
  const T* x;  // [rows, size]
  T* y;        // [rows, size]
  PerChannel<T> weight, bias;
  PackChannels channels;
  FastDivide groups;
  int64_t rows, size, packs, group_channels;
  float eps;
  bool beyond_l2;  // x alone would fill L2

  explicit GroupNormRows(const GroupNormArgs& a)
      : x(static_cast<const T*>(a.x)),
        y(static_cast<T*>(a.y)),
        weight(a.weight, 1.0f),
        bias(a.bias, 0.0f),
        channels(a.shape, kPack<T>),
        groups(a.shape.groups),
        rows(a.shape.rows()),
        size(a.shape.row_size()),
        packs(size / kPack<T>),
        group_channels(a.shape.group_channels()),
        eps(a.eps),
        beyond_l2(rows * a.row_bytes() >= kL2Bytes) {}

  // As the row-wise norms: a stream longer than L2 is read so that the results leave first.
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ const T* x_row(int64_t row) const { return x + row * size; }
  __device__ T* y_row(int64_t row) const { return y + row * size; }
  __device__ int64_t first_channel(int64_t row) const {
    return (row - static_cast<int64_t>(groups.quotient(row) * groups.divisor)) * group_channels;
  }
};

// Normalises one pack of the group whose first channel is `first`.
template <class Activation, class T>
__device__ __forceinline__ Pack<T> normalise(const Pack<T>& x, int64_t pack, int64_t first, const Normaliser& n,
                                             const GroupNormRows<T>& v) {
  constexpr int kWidth = kPack<T>;
  float values[kWidth];
  to_float(values, x);
  const auto apply = [&](int i, float scale, float shift) {
    values[i] = activate<Activation, T>(fmaf(values[i] - n.mean, scale, shift));
  };
  if (v.channels.whole) {
    const int64_t channel = first + static_cast<int64_t>(v.channels.divide.quotient(pack));
    const float scale = n.rstd * v.weight[channel], shift = v.bias[channel];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) apply(i, scale, shift);
  } else {
    v.channels.template visit_split<kWidth>(
        pack, [&](int i, int64_t channel) { apply(i, n.rstd * v.weight[first + channel], v.bias[first + channel]); });
  }
  Pack<T> y;
  from_float(y, values);
  return y;
}

}  // namespace warpsmith
