// What the rungs of group_norm for contiguous tensors share: groups as rows of packs.
#pragma once

#include "norm/group.cuh"
#include "norm/group_norm/group_norm.h"
#include "row/packed.h"

namespace warpsmith {

// Of `count` values, by the sums of their deviations from what is nearly their mean and of the squares of these.
__device__ __forceinline__ Moments moments_around(float count, float around, float deviations, float squares) {
  const float off = count > 0.0f ? __fdividef(deviations, count) : 0.0f;
  const float m2 = fmaf(-off, deviations, squares);
  return {count, around + off, m2 < 0.0f ? 0.0f : m2};
}

template <class T>
struct GroupNormRows {
  const T* x;  // [rows, cols]
  T* y;        // [rows, cols]
  PerChannel<T> weight, bias;
  FastDivide groups, channel_packs;
  int64_t rows, cols;  // a row is a group, its columns the positions of its channels, one after another
  int64_t group_channels;
  float eps;
  bool beyond_l2;  // x alone would fill L2

  explicit GroupNormRows(const GroupNormArgs& a)
      : x(static_cast<const T*>(a.x)),
        y(static_cast<T*>(a.y)),
        weight(a.weight, 1.0f),
        bias(a.bias, 0.0f),
        groups(a.shape.groups),
        channel_packs(std::max<int64_t>(a.shape.spatial / kPack<T>, 1)),
        rows(a.shape.rows()),
        cols(a.shape.row_size()),
        group_channels(a.shape.group_channels()),
        eps(a.eps),
        beyond_l2(rows * a.row_bytes() >= kL2Bytes) {}

  // A stream longer than L2 is read so that the results leave first.
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ int64_t packs() const { return cols / kPack<T>; }
  __device__ const uint4* x_packs(int64_t row) const { return reinterpret_cast<const uint4*>(x + row * cols); }
  __device__ uint4* y_packs(int64_t row) const { return reinterpret_cast<uint4*>(y + row * cols); }

  __device__ __forceinline__ int64_t first_channel(int64_t row) const {
    return (row - static_cast<int64_t>(groups.quotient(row) * groups.divisor)) * group_channels;
  }
  // The same as the quotient by channel_packs, of groups of fewer than 2^31 packs.
  __device__ __forceinline__ int small_quotient(int pack) const {
    return static_cast<int>(channel_packs.small_quotient(static_cast<uint32_t>(pack)));
  }
  // Of a pack that lies in one.
  __device__ __forceinline__ int64_t channel(int64_t row, int64_t pack) const {
    return first_channel(row) + static_cast<int64_t>(channel_packs.quotient(pack));
  }
};

// The moments of a pack.
template <class T>
__device__ __forceinline__ Moments pack_moments(const uint4& x) {
  float values[kPack<T>];
  unpack<T>(values, x);
  return moments_of(values);
}

// A pack of one channel.
template <class Activation, class T>
__device__ __forceinline__ uint4 normalise(const uint4& x, const Normaliser& n, float weight, float bias) {
  const float scale = n.rstd * weight;
  float values[kPack<T>];
  unpack<T>(values, x);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    values[i] = activate<Activation, T>(fmaf(values[i] - n.mean, scale, bias));
  }
  return pack<T>(values);
}

}  // namespace warpsmith
