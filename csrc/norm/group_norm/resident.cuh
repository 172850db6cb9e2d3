// Group norm for groups that stay on chip: what the engine in row/registers.cuh needs to know about it.
#pragma once

#include "norm/group_norm/rows.cuh"
#include "row/registers.cuh"

namespace warpsmith {

template <class T, class Activation>
struct GroupNorm : GroupNormRows<T> {
  using Value = T;
  static constexpr int kInputs = 1;
  using Stats = Moments;
  using Total = Normaliser;
  // Weight and bias are one value each for a pack, and others for the next group.
  struct Columns {
    __device__ void load_from(const GroupNorm&, int) {}
    __device__ void keep(uint32_t) {}
  };
  using GroupNormRows<T>::GroupNormRows;

  __device__ static uint4 padding() { return {}; }
  __device__ const T* input(int, int64_t row) const { return this->x + row * this->cols; }

  // Two passes over what a thread holds, one level of merging over the warp.
  template <int lanes, int packs>
  __device__ __forceinline__ Stats gather(const uint4 (&x)[packs][1], int valid) const {
    const auto count = static_cast<float>(valid * kPack<T>);
    const float share = valid > 0 ? 1.0f / count : 0.0f;
    float mean = 0.0f, deviations[2] = {}, m2[2] = {};
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (i < valid) {
        float values[kPack<T>];
        unpack<T>(values, x[i][0]);
        mean = fmaf(values[0], share, mean);
        float other = values[1] * share;
#pragma unroll
        for (int j = 2; j < kPack<T>; j += 2) {
          mean = fmaf(values[j], share, mean);
          other = fmaf(values[j + 1], share, other);
        }
        mean += other;
      }
    }
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (i < valid) {
        float values[kPack<T>];
        unpack<T>(values, x[i][0]);
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) {
          const float deviation = values[j] - mean;
          deviations[j % 2] += deviation;
          m2[j % 2] = fmaf(deviation, deviation, m2[j % 2]);
        }
      }
    }
    const Moments moments = moments_around(count, mean, deviations[0] + deviations[1], m2[0] + m2[1]);
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
                                         const Columns&) const {
    const int at = col / kPack<T>;
    const int64_t channel = this->first_channel(row) + this->small_quotient(at);
    const uint4 y = normalise<Activation, T>(x[0], total, this->weight[channel], this->bias[channel]);
    ptx::store_streaming(this->y_packs(row) + at, y);
  }
};

}  // namespace warpsmith
