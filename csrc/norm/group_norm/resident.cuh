// Group norm for groups that stay on chip: what the engine in row/registers.cuh needs to know about it.
#pragma once

#include "norm/group_norm/rows.cuh"
#include "row/registers.cuh"

namespace warpsmith {

template <class T, class Activation>
struct GroupNorm : GroupNormRows<T>, WithoutColumns<GroupNorm<T, Activation>> {
  using Value = T;
  static constexpr int kInputs = 1;
  using Stats = Moments;
  using Total = Normaliser;
  // Weight and bias are one value each for a pack, and others for the next group.
  using GroupNormRows<T>::GroupNormRows;

  __device__ static uint4 padding() { return {}; }
  __device__ const T* input(int, int64_t row) const { return this->x + row * this->cols; }

  template <int lanes, int packs>
  __device__ __forceinline__ Stats gather(const uint4 (&x)[packs][1], int valid) const {
    const Moments moments = thread_moments<T, packs>([&](int i) { return x[i][0]; }, valid);
    if constexpr (lanes == kWarp) return warp_merge_around(moments);
    return warp_merge<lanes>(moments);
  }

  __device__ __forceinline__ Stats combine(const Stats* parts, int count) const {
    const int lane = threadIdx.x % kWarp;
    return warp_merge_around(lane < count ? parts[lane] : Moments{});
  }

  __device__ __forceinline__ Total total(const Stats& stats) const { return normaliser(stats, this->eps); }

  __device__ void keep(int64_t, const Total&) const {}
  __device__ __forceinline__ void finish(int64_t row, int col, const uint4 (&x)[1], const Total& total,
                                         const typename WithoutColumns<GroupNorm>::Columns&) const {
    const int at = col / kPack<T>;
    const int64_t channel = this->first_channel(row) + this->small_quotient(at);
    const uint4 y = normalise<Activation, T>(x[0], total, this->template affine<Activation>(channel));
    ptx::store_streaming(this->y_packs(row) + at, y);
  }
};

}  // namespace warpsmith
