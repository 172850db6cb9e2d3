// What the rungs of group_norm_backward for contiguous tensors share: groups as rows of packs, every pack in one
// channel.
#pragma once

#include "norm/group_norm/backward/sums.cuh"

namespace warpsmith {

template <class T>
struct GroupNormBackwardRows {
  const T* grad;  // [rows, size], as x and dx
  const T* x;
  T* dx;
  PerChannel<T> weight, bias;
  FastDivide channel_packs, groups;
  int64_t rows, size, packs, group_channels;
  float eps;
  bool beyond_l2;  // x alone would fill L2

  explicit GroupNormBackwardRows(const GroupNormBackwardArgs& a)
      : grad(static_cast<const T*>(a.grad)),
        x(static_cast<const T*>(a.x)),
        dx(static_cast<T*>(a.dx)),
        weight(a.weight, 1.0f),
        bias(a.bias, 0.0f),
        channel_packs(a.shape.spatial / kPack<T>),
        groups(a.shape.groups),
        rows(a.shape.rows()),
        size(a.shape.row_size()),
        packs(size / kPack<T>),
        group_channels(a.shape.group_channels()),
        eps(a.eps),
        beyond_l2(rows * a.row_bytes() >= kL2Bytes) {}

  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ int64_t sample(int64_t row) const { return static_cast<int64_t>(groups.quotient(row)); }
  __device__ int64_t first_channel(int64_t row) const {
    return (row - sample(row) * static_cast<int64_t>(groups.divisor)) * group_channels;
  }
  __device__ ChannelGrad channel(const Normaliser& n, int64_t at) const { return {n, weight[at], bias[at]}; }
};

// gz * (x - mean) and gz of a pack, on top of `sums`.
template <class Activation, class T>
__device__ __forceinline__ void add_pack(GradSums& sums, const ChannelGrad& channel, const Pack<T>& grad,
                                         const Pack<T>& x) {
  float g[kPack<T>], values[kPack<T>];
  to_float(g, grad);
  to_float(values, x);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const float gz = channel.template gz<Activation, T>(g[i], values[i]);
    sums.dw = fmaf(gz, values[i] - channel.n.mean, sums.dw);
    sums.db += gz;
  }
}

template <class Activation, class T>
__device__ __forceinline__ Pack<T> pack_dx(const ChannelGrad& channel, const Pack<T>& grad, const Pack<T>& x,
                                           const GradSums& mean) {
  float g[kPack<T>], values[kPack<T>];
  to_float(g, grad);
  to_float(values, x);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) g[i] = channel.template dx<Activation, T>(g[i], values[i], mean);
  Pack<T> dx;
  from_float(dx, g);
  return dx;
}

}  // namespace warpsmith
