// Softmax for rows that stay on chip: what the engines in row/ need to know about it.
#pragma once

#include "row/registers.cuh"
#include "softmax/softmax/result.cuh"

namespace warpsmith {

// Value by value; where one is NaN, the other. 16-bit values stay in pairs.
template <class T>
__device__ __forceinline__ uint4 max_packed(const uint4& a, const uint4& b) {
  const uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      words[i] = __float_as_uint(fmaxf(__uint_as_float(left[i]), __uint_as_float(right[i])));
    } else {
      using Pair = std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162>;
      const Pair larger = __hmax2(reinterpret_cast<const Pair&>(left[i]), reinterpret_cast<const Pair&>(right[i]));
      words[i] = reinterpret_cast<const uint32_t&>(larger);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// Result: Probability or LogProbability.
template <class T, class Result>
struct Softmax : SoftmaxRows<T>, WithoutColumns<Softmax<T, Result>> {
  using Value = T;
  static constexpr int kInputs = 1;
  using Stats = MaxSum;
  using Total = Result;

  bool beyond_l2;  // x alone would fill L2

  explicit Softmax(const SoftmaxArgs& a)
      : SoftmaxRows<T>(a), beyond_l2(a.rows * a.cols * size_of(a.dtype) >= kL2Bytes) {}

  // Values of -inf: they change neither the maximum nor the sum.
  __device__ static uint4 padding() {
    constexpr uint32_t kWord = std::is_same_v<T, float> ? 0xff800000u
                               : std::is_same_v<T, f16> ? 0xfc00fc00u
                                                        : 0xff80ff80u;
    return {kWord, kWord, kWord, kWord};
  }
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }
  __device__ const T* input(int, int64_t row) const { return this->x_row(row); }
  __device__ T* output(int64_t row) const { return this->y_row(row); }

  template <int lanes, int packs>
  __device__ __forceinline__ MaxSum gather(const uint4 (&x)[packs][1], int) const {
    uint4 largest = x[0][0];
#pragma unroll
    for (int i = 1; i < packs; ++i) largest = max_packed<T>(largest, x[i][0]);
    float candidates[kPack<T>];
    unpack<T>(candidates, largest);
    float max = kLowest;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) max = fmaxf(max, candidates[j]);
    max = warp_reduce<lanes>(max, Largest{});
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      float values[kPack<T>];
      unpack<T>(values, x[i][0]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) sum += exponential<T>(values[j] - max);
    }
    return {max, warp_reduce<lanes>(sum)};
  }

  __device__ __forceinline__ MaxSum combine(const MaxSum* parts, int count) const {
    const int lane = threadIdx.x % kWarp;
    float max = kLowest;
    for (int i = lane; i < count; i += kWarp) max = fmaxf(max, parts[i].max);
    max = warp_reduce(max, Largest{});
    float sum = 0.0f;
    for (int i = lane; i < count; i += kWarp) sum += parts[i].sum * exponential<T>(parts[i].max - max);
    return {max, warp_reduce(sum)};
  }

  __device__ __forceinline__ Result total(const MaxSum& stats) const { return Result(stats.max, stats.sum); }

  __device__ void keep(int64_t, const Result&) const {}
  __device__ __forceinline__ void finish(int64_t row, int col, const uint4 (&x)[1], const Result& result,
                                         const typename WithoutColumns<Softmax>::Columns&) const {
    float values[kPack<T>];
    unpack<T>(values, x[0]);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) values[i] = result(values[i]);
    ptx::store_streaming(reinterpret_cast<uint4*>(this->y_row(row) + col), pack<T>(values));
  }
  __device__ __forceinline__ void finish_one(int64_t row, int col, const T (&x)[1], const Result& result) const {
    this->y_row(row)[col] = from_float<T>(result(to_float(x[0])));
  }
};

}  // namespace warpsmith
