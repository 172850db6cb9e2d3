// Layer norm for rows that stay on chip: what the engines in row/ need to know about it.
#pragma once

#include "device/moments.h"
#include "norm/layer_norm/row.cuh"
#include "row/registers.cuh"

namespace warpsmith {

template <class T, class W>
struct LayerNorm : LayerNormRows<T, W> {
  using Value = T;
  static constexpr int kInputs = 1;
  using Stats = Moments;
  using Total = RowStats;
  struct Columns {
    PackedColumns<T, W> weight, bias;
    __device__ __forceinline__ void load_from(const LayerNorm& row, int col) {
      weight.load_from(row.weight, col, 1.0f);
      bias.load_from(row.bias, col, 0.0f);
    }
    __device__ __forceinline__ void keep(uint32_t zero) {
      weight.keep(zero);
      bias.keep(zero);
    }
  };
  // Registers for weight and bias of nine packs. Those wider than x would take twice as many.
  template <int packs>
  static constexpr bool kHoldsColumns = sizeof(W) == sizeof(T) && packs <= 9;
  // With more than four packs of weights held, no registers are left for the row.
  template <int packs>
  static constexpr bool kGathersFromRing = kHoldsColumns<packs> && packs > 4;

  bool beyond_l2;  // x alone would fill L2

  explicit LayerNorm(const LayerNormArgs& a)
      : LayerNormRows<T, W>(a), beyond_l2(a.rows * a.cols * size_of(a.dtype) >= kL2Bytes) {}

  __device__ static uint4 padding() { return {}; }
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }
  __device__ const T* input(int, int64_t row) const { return this->x_row(row); }

  template <int lanes, int packs, class X>
  __device__ __forceinline__ Stats gather(const X& x, int valid) const {
    // Lanes that are but a part of a warp share a whole row.
    const auto cols = static_cast<int>(this->cols);
    const int heads = lanes < kWarp ? min(cols / kPack<T>, lanes) : __popc(__ballot_sync(kAllLanes, valid > 0));
    const int count = lanes < kWarp ? cols : __reduce_add_sync(kAllLanes, valid) * kPack<T>;
    return gather_around<lanes, packs>(x, valid, heads, count);
  }

  // Two passes over registers cost two sums over the lanes, one less than a pass around a shift. Of 16 bits the mean is
  // exact enough for its error to vanish in the squares. Beside more packs, and the weights, values would spill, and
  // before sm_90 beside these.
  template <int lanes, int packs>
  __device__ __forceinline__ Stats gather_whole(const uint4 (&x)[packs][1]) const {
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
        keep_packed(again, detail::unknown_zero(*this));
        unpack<T>(values, again);
#pragma unroll
        for (float value : values) m2 = fmaf(value - mean, value - mean, m2);
      }
      return {kCount, mean, warp_reduce<lanes>(m2)};
    } else {
      return gather_around<lanes, packs>(x, packs, lanes, kCount);
    }
  }

  __device__ __forceinline__ Stats combine(const Stats* parts, int count) const {
    const int lane = threadIdx.x % kWarp;
    return warp_merge_around(lane < count ? parts[lane] : Moments{});
  }

  __device__ __forceinline__ RowStats total(const Stats& stats) const {
    const float variance = stats.m2 * this->inverse_count;
    return {stats.mean, rsqrtf((variance < 0.0f ? 0.0f : variance) + this->eps)};  // NaN passes
  }

  __device__ __forceinline__ void finish(int64_t row, int col, const uint4 (&x)[1], const RowStats& stats,
                                         const Columns& columns) const {
    float values[kPack<T>], weight[kPack<T>], bias[kPack<T>];
    unpack<T>(values, x[0]);
    columns.weight.unpack_to(weight);
    columns.bias.unpack_to(bias);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) values[i] = fmaf((values[i] - stats.mean) * stats.rstd, weight[i], bias[i]);
    ptx::store_streaming(reinterpret_cast<uint4*>(this->y_row(row) + col), pack<T>(values));
  }

 private:
  // One pass, around a value near the mean: what the lanes hold first, averaged, each divided before it is added lest
  // the sum leave the range. Few lanes take four values each: around a shift that is some standard deviations off,
  // squares add up to several times what is left of them. How far off it is the deviations add up to.
  // heads: lanes that hold any of the row. count: values that they all hold.
  template <int lanes, int packs, class X>
  __device__ __forceinline__ Stats gather_around(const X& x, int valid, int heads, int count) const {
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

// Rows in registers, alone in their block or not. `blocks` is how many of 128 threads a multiprocessor must hold.
template <int blocks>
struct LayerNormTileList {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 4, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 2, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 4, .min_blocks = blocks},
      {.threads = 128, .lanes = 16, .packs = 4, .min_blocks = blocks},
      {.threads = 128, .lanes = 32, .packs = 4, .min_blocks = blocks},
      {.threads = 64, .packs = 4, .min_blocks = 2 * blocks},
      {.threads = 128, .packs = 4, .min_blocks = blocks},
      {.threads = 256, .packs = 4, .min_blocks = blocks / 2},
      {.threads = 512, .packs = 4, .min_blocks = blocks / 4},
      {.threads = 512, .packs = 8, .min_blocks = 2},
      {.threads = 1024, .packs = 8, .min_blocks = 1},
  };
};
template <int blocks>
using LayerNormTilesOf = TilesOf<LayerNormTileList<blocks>>;
static_assert(kMostRowBytes == 16 * kMostRowPacks<LayerNormTilesOf<12>>, "what `takes` says");

// Wide weights take more registers.
template <class T, class W>
using LayerNormTiles = LayerNormTilesOf<sizeof(W) == sizeof(T) ? 12 : 8>;

}  // namespace warpsmith
