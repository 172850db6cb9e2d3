// What RMS norm and layer norm need to know about a row, and how parts of it are put together.
#pragma once

#include "device/moments.h"
#include "norm/row.cuh"
#include "row/packed.h"

namespace warpsmith {

// With it, a value becomes (value - mean) * rstd * weight + bias. RMS norm has no mean.
struct RowStatistics {
  float mean, rstd;
};

struct RmsNorm {
  static constexpr bool kLayer = false;
  static constexpr int kMostHeldPacks = 8;  // whose weights fit in registers, in the dtype of the row
  struct Stats {
    float squares;
  };

  // Of the `packs` that each of `lanes` neighbours has.
  template <class T, int lanes, int packs, class X>
  __device__ __forceinline__ static Stats gather(const X& x, int, int) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      float values[kPack<T>];
      unpack<T>(values, x[i][0]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) sum = fmaf(values[j], values[j], sum);
    }
    return {warp_reduce<lanes>(sum)};
  }

  // By a whole warp: of at most 32 parts, or of `count`, a power of two.
  __device__ __forceinline__ static Stats combine(const Stats* parts, int count) {
    const int lane = threadIdx.x % kWarp;
    return {warp_reduce(lane < count ? parts[lane].squares : 0.0f)};
  }
  template <int count>
  __device__ __forceinline__ static Stats combine(const Stats* parts) {
    return {warp_reduce<count>(parts[threadIdx.x % count].squares)};
  }

  __device__ __forceinline__ static RowStatistics total(const Stats& stats, float inverse_count, float eps) {
    return {0.0f, reciprocal_rms(stats.squares, inverse_count, eps)};
  }

  __device__ __forceinline__ static float apply(float value, const RowStatistics& row, float weight, float) {
    return value * row.rstd * weight;
  }
};

struct LayerNorm {
  static constexpr bool kLayer = true;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int kMostHeldPacks = 2;  // before sm_90 more would spill
#else
  static constexpr int kMostHeldPacks = 9;
#endif
  using Stats = Moments;

  template <class T, int lanes, int packs, class X>
  __device__ __forceinline__ static Stats gather(const X& x, int valid, int cols) {
    // Lanes that are but a part of a warp share a whole row.
    const int heads = lanes < kWarp ? min(cols / kPack<T>, lanes) : __popc(__ballot_sync(kAllLanes, valid > 0));
    const int count = lanes < kWarp ? cols : __reduce_add_sync(kAllLanes, valid) * kPack<T>;
    return gather_around<T, lanes, packs>(x, valid, heads, count);
  }

  // Of a row of lanes * packs packs. Two passes over registers cost two sums over the lanes, one less than a pass around a
  // shift. Of 16 bits the mean is exact enough for its error to vanish in the squares. Beside more packs, and the weights,
  // values would spill, and before sm_90 beside these.
  // zero: as in keep_packed.
  template <class T, int lanes, int packs, class X>
  __device__ __forceinline__ static Stats gather_whole(const X& x, uint32_t zero) {
    constexpr int kCount = lanes * packs * kPack<T>;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    constexpr bool kTwoPasses = false;
#else
    constexpr bool kTwoPasses = sizeof(T) == 2 && packs <= 2;
#endif
    if constexpr (kTwoPasses) {
      float values[kPack<T>], mean = 0.0f, m2 = 0.0f;
#pragma unroll
      for (int i = 0; i < packs; ++i) {
        unpack<T>(values, x[i][0]);
#pragma unroll
        for (float value : values) mean = fmaf(value, 1.0f / kCount, mean);
      }
      mean = warp_reduce<lanes>(mean);
#pragma unroll
      for (int i = 0; i < packs; ++i) {
        uint4 again = x[i][0];
        keep_packed(again, zero);
        unpack<T>(values, again);
#pragma unroll
        for (float value : values) m2 = fmaf(value - mean, value - mean, m2);
      }
      return {kCount, mean, warp_reduce<lanes>(m2)};
    } else {
      return gather_around<T, lanes, packs>(x, packs, lanes, kCount);
    }
  }

  __device__ __forceinline__ static Stats combine(const Stats* parts, int count) {
    const int lane = threadIdx.x % kWarp;
    return warp_merge_around(lane < count ? parts[lane] : Moments{});
  }
  template <int count>
  __device__ __forceinline__ static Stats combine(const Stats* parts) {
    return warp_merge_around<count>(parts[threadIdx.x % count]);
  }

  __device__ __forceinline__ static RowStatistics total(const Stats& stats, float inverse_count, float eps) {
    const float variance = stats.m2 * inverse_count;
    return {stats.mean, rsqrtf((variance < 0.0f ? 0.0f : variance) + eps)};  // NaN passes
  }

  __device__ __forceinline__ static float apply(float value, const RowStatistics& row, float weight, float bias) {
    return fmaf((value - row.mean) * row.rstd, weight, bias);
  }

 private:
  // One pass, around a value near the mean: what the lanes hold first, averaged, each divided before it is added lest
  // the sum leave the range. Few lanes take four values each: around a shift that is some standard deviations off,
  // squares add up to several times what is left of them. How far off it is the deviations add up to.
  // heads: lanes that hold any of the row. count: values that they all hold.
  template <class T, int lanes, int packs, class X>
  __device__ __forceinline__ static Stats gather_around(const X& x, int valid, int heads, int count) {
    float values[kPack<T>];
    unpack<T>(values, x[0][0]);
    constexpr int kHeads = lanes < kWarp ? 4 : 1;
    const float share = __fdividef(1.0f, static_cast<float>(kHeads * max(heads, 1)));
    float head = values[0] * share;
#pragma unroll
    for (int j = 1; j < kHeads; ++j) head = fmaf(values[j], share, head);
    const float shift = warp_reduce<lanes>(valid > 0 ? head : 0.0f);
    float deviation = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      if (i < valid) {
        unpack<T>(values, x[i][0]);
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) {
          const float d = values[j] - shift;
          deviation += d;
          square = fmaf(d, d, square);
        }
      }
    }
    deviation = warp_reduce<lanes>(deviation);
    square = warp_reduce<lanes>(square);
    const float distance = __fdividef(deviation, static_cast<float>(max(count, 1)));
    // Of (d - distance)^2: that the division is not exact is felt in the second order only.
    const float m2 = fmaf(-distance, fmaf(-distance, static_cast<float>(count), 2.0f * deviation), square);
    return {static_cast<float>(count), shift + distance, m2};
  }
};

}  // namespace warpsmith
