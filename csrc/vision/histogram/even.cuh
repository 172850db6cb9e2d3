// Floats among edges that are evenly spaced but for their rounding: which bin they fall into without a look at an edge.
//
// place(x) = x scale + bias, rounded once, puts an even edge i at i - 1/2, so that the nearest integer is the bin. It never
// falls where x rises. Where each edge i lies at i - 1/2 but for `margin`, an x whose place is within 1/2 - margin of i lies
// beyond edge i, or on it, and before edge i + 1: whatever `scale` and `bias` lost to rounding, margin has seen. The few
// others between the first edge and the last are searched for.
#pragma once

#include "vision/histogram/bins.cuh"

namespace warpsmith {

struct EvenBins {
  static constexpr float kWholes = 12582912.0f;  // 1.5 2^23: a float that is added to it becomes an integer
  static constexpr float kMostMargin = 0.25f;

  BinOf<float> searched;
  float scale, bias, within;

  __device__ explicit EvenBins(const BinOf<float>& of)
      : searched(of), scale(of.scale), bias(fmaf(-of.first, of.scale, -0.5f)), within(0.0f) {}

  __device__ __forceinline__ float place(float x) const { return fmaf(x, scale, bias); }

  // How far edge i lies from i - 1/2: exact where it is less than 1/4. Not less where it is NaN.
  __device__ __forceinline__ float margin_of(int i) const {
    return fabsf(place(searched.edges[i]) - (static_cast<float>(i) - 0.5f));
  }

  // Whether edges that are in order, with that margin, are worth it.
  __device__ __forceinline__ bool knows(float margin) {
    within = 0.5f - margin;
    return margin < kMostMargin;
  }

  // Whether it falls into a bin at all: not where it is NaN.
  __device__ __forceinline__ bool has(float x) const { return x >= searched.first && x <= searched.last; }

  // Whether the bin is certain.
  __device__ __forceinline__ bool find(uint32_t& bin, float x) const {
    const float at = place(x), whole = at + kWholes;
    bin = __float_as_uint(whole) - __float_as_uint(kWholes);
    return fabsf(at - (whole - kWholes)) < within && bin < searched.bins;
  }
};

// Counts in one lane's words, which lie 2^shift apart. What is not certain waits for the end of its pack, so that lanes
// rarely part.
struct CountEven {
  const EvenBins& even;
  uint32_t* own;
  int shift;

  __device__ __forceinline__ void operator()(const Pack<float>& pack) const {
    unsigned unknown = 0;
#pragma unroll
    for (int k = 0; k < kPack<float>; ++k) {
      uint32_t bin;
      if (even.find(bin, pack.value[k])) {
        atomicAdd(own + (bin << shift), 1u);
      } else if (even.has(pack.value[k])) {
        unknown |= 1u << k;
      }
    }
#pragma unroll 1
    for (int k = 0; unknown != 0; ++k, unknown >>= 1) {
      if (unknown % 2 == 0) continue;
      (*this)(k == 0 ? pack.value[0] : k == 1 ? pack.value[1] : k == 2 ? pack.value[2] : pack.value[3]);
    }
  }

  __device__ __forceinline__ void operator()(float x) const {
    const uint32_t bin = even.searched(x);
    if (bin < even.searched.bins) atomicAdd(own + (bin << shift), 1u);
  }
};

}  // namespace warpsmith
