// What the rungs of group_norm for contiguous tensors share: groups as rows of packs.
#pragma once

#include "norm/group.cuh"
#include "norm/group_norm/group_norm.h"
#include "row/packed.h"

namespace warpsmith {

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
  // {weight, bias}, as the activation wants its argument.
  template <class Activation>
  __device__ __forceinline__ float2 affine(int64_t channel) const {
    constexpr float kUnit = kArgumentUnit<Activation, T>;
    return {weight[channel] * kUnit, bias[channel] * kUnit};
  }
  // Of a pack that lies in one.
  __device__ __forceinline__ int64_t channel(int64_t row, int64_t pack) const {
    return first_channel(row) + static_cast<int64_t>(channel_packs.quotient(pack));
  }
};

// The moments of a thread's packs at(0), ..., at(valid - 1), in one pass around the mean of the first of them: that is off
// by at most their own spread, so little cancels, and nothing where all values are the same.
template <class T, int packs, class At>
__device__ __forceinline__ Moments thread_moments(At&& at, int valid) {
  constexpr int kWidth = kPack<T>;
  float values[kWidth], tree[kWidth / 2];
  unpack<T>(values, at(0));
#pragma unroll
  for (int j = 0; j < kWidth / 2; ++j)
    tree[j] = fmaf(values[2 * j], 1.0f / kWidth, values[2 * j + 1] * (1.0f / kWidth));
#pragma unroll
  for (int half = kWidth / 4; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) tree[j] += tree[j + half];
  }
  float deviations[2] = {}, squares[2] = {};
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    if (i < valid) {
      unpack<T>(values, at(i));
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float deviation = values[j] - tree[0];
        deviations[j % 2] += deviation;
        squares[j % 2] = fmaf(deviation, deviation, squares[j % 2]);
      }
    }
  }
  return moments_around(static_cast<float>(valid * kWidth), tree[0], deviations[0] + deviations[1],
                        squares[0] + squares[1]);
}

// The moments of a pack.
template <class T>
__device__ __forceinline__ Moments pack_moments(const uint4& x) {
  float values[kPack<T>];
  unpack<T>(values, x);
  return moments_of(values);
}

// A pack of one channel.
template <class Activation, class T>
__device__ __forceinline__ uint4 normalise(const uint4& x, const Normaliser& n, const float2& affine) {
  const float scale = n.rstd * affine.x, shift = affine.y;
  float values[kPack<T>];
  unpack<T>(values, x);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    values[i] = activate<Activation, T>(fmaf(values[i] - n.mean, scale, shift));
  }
  return pack<T>(values);
}

}  // namespace warpsmith
