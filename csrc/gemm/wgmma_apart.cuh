// Sums by wgmma that leave the tensor cores at every step: of fp8 products, of which those keep some 14 bits.
#pragma once

#include "gemm/wgmma_tile.cuh"

namespace warpsmith {

// A tile's products of a step run while those before it are added, where registers have room for the sums of both;
// otherwise those of the other warpgroup do.
template <class Config>
inline constexpr bool kStepAhead = Config::strips == 1 && Config::bn <= 128;

#if WARPSMITH_HAS_WGMMA

template <class Config>
__device__ __forceinline__ void clear_sums(typename Config::Sums& sums) {
#pragma unroll
  for (auto& strip : sums) {
#pragma unroll
    for (float& sum : strip) sum = 0.0f;
  }
}

template <class Config>
__device__ __forceinline__ void add_sums(typename Config::Sums& to, const typename Config::Sums& sums) {
#pragma unroll
  for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
    for (int e = 0; e < Config::bn / 2; ++e) to[i][e] += sums[i][e];
  }
}

// Nothing that the sums of a step are multiplied by.
struct NoScales {};

// A step on its way.
template <class Config, class Scales>
struct StepApart {
  typename Config::Sums sums;
  Scales scales;
  RingSlot<Config::stages> at;
};

// Sums of `steps` stages from `at` on, one at least, as multiply_steps otherwise. wait(scales, step, at) asks for what the
// sums of a step are multiplied by, and waits for its stage; join(own, scales) adds them to those of the others, which begin
// with zeros.
template <class Config, class Scales, class Wait, class Join>
__device__ __forceinline__ void multiply_apart(const WgmmaReader<Config>& reader, WgmmaRing<Config::stages>& ring,
                                               RingSlot<Config::stages>& at, int steps, Wait&& wait, Join&& join) {
  using Step = StepApart<Config, Scales>;
  const auto begin = [&](Step& step, int index) {
    step.at = at;
    at.advance();
    wait(step.scales, index, step.at);
    ptx::wgmma_fence();
    reader.multiply(step.sums, step.at.slot, false);
    ptx::wgmma_commit();
  };
  const auto end = [&]<int pending>(Step& step) {
    ptx::wgmma_wait<pending>(step.sums);
    ring.template release_unread<Config::cluster>(step.at);
    join(step.sums, step.scales);
  };
  if constexpr (kStepAhead<Config>) {
    Step even, odd;
    begin(even, 0);
    int next = 1;
#pragma unroll 1
    for (; next + 1 < steps; next += 2) {
      begin(odd, next);
      end.template operator()<1>(even);
      begin(even, next + 1);
      end.template operator()<1>(odd);
    }
    if (next < steps) {
      begin(odd, next);
      end.template operator()<1>(even);
      end.template operator()<0>(odd);
    } else {
      end.template operator()<0>(even);
    }
  } else {
#pragma unroll 1
    for (int index = 0; index < steps; ++index) {
      Step step;
      begin(step, index);
      end.template operator()<0>(step);
    }
  }
}

#endif

}  // namespace warpsmith
