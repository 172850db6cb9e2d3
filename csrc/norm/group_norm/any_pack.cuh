// Group norm of packs that may hold the values of several channels.
#pragma once

#include "norm/group_norm/rows.cuh"

namespace warpsmith {

// Where the packs of a group find their channels.
struct PackChannels {
  int64_t spatial;
  bool whole;  // every pack lies within one channel
  FastDivide positions;

  explicit PackChannels(const GroupNormArgs& a)
      : spatial(a.shape.spatial), whole(spatial % (16 / size_of(a.dtype)) == 0), positions(spatial) {}
};

// Pack `at` of a row.
template <class Activation, class T>
__device__ __forceinline__ uint4 normalise_any(const uint4& x, int64_t row, int64_t at, const Normaliser& n,
                                               const PackChannels& channels, const GroupNormRows<T>& v) {
  if (channels.whole) {
    return normalise<Activation, T>(x, n, v.template affine<Activation>(v.channel(row, at)));
  }
  const int64_t first = at * kPack<T>, first_channel = v.first_channel(row);
  int64_t channel = channels.positions.quotient(first), position = first - channel * channels.spatial;
  float values[kPack<T>];
  unpack<T>(values, x);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const float2 affine = v.template affine<Activation>(first_channel + channel);
    values[i] = activate<Activation, T>(fmaf(values[i] - n.mean, n.rstd * affine.x, affine.y));
    if (++position == channels.spatial) {
      position = 0;
      ++channel;
    }
  }
  return pack<T>(values);
}

}  // namespace warpsmith
