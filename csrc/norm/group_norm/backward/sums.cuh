// What the rungs of group_norm_backward share: typed arguments, the arithmetic of one value, the sums behind dw and db.
#pragma once

#include "norm/group.cuh"
#include "norm/group_norm/backward/group_norm_backward.h"

namespace warpsmith {

// Two sums that travel together: of gz * xhat and of gz, for dw and db; weighted, for dx.
struct GradSums {
  float dw, db;
};

__device__ __forceinline__ GradSums operator+(const GradSums& a, const GradSums& b) {
  return {a.dw + b.dw, a.db + b.db};
}

__device__ __forceinline__ GradSums operator*(float factor, const GradSums& sums) {
  return {factor * sums.dw, factor * sums.db};
}

__device__ __forceinline__ GradSums warp_sum(const GradSums& sums) {
  return {warp_reduce(sums.dw), warp_reduce(sums.db)};
}

// Over the block; every thread gets the sums. Two calls in a row need a barrier between them, or two buffers.
__device__ __forceinline__ GradSums block_sum(GradSums sums, GradSums (&partial)[kWarp]) {
  sums = warp_sum(sums);
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (warps == 1) return sums;
  if (lane == 0) partial[threadIdx.x / kWarp] = sums;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : GradSums{});
}

// One channel of one group.
struct ChannelGrad {
  Normaliser n;
  float weight, bias;

  __device__ __forceinline__ float xhat(float x) const { return (x - n.mean) * n.rstd; }

  template <class Activation, class T>
  __device__ __forceinline__ float gz(float grad, float x) const {
    constexpr float kUnit = kArgumentUnit<Activation, T>;
    return activate_backward<Activation, T>(grad, fmaf(x - n.mean, n.rstd * (weight * kUnit), bias * kUnit));
  }

  // gz * xhat and gz on top of `sums`
  template <class Activation, class T>
  __device__ __forceinline__ void add_to(GradSums& sums, float grad, float x) const {
    const float g = gz<Activation, T>(grad, x);
    sums.dw = fmaf(g, xhat(x), sums.dw);
    sums.db += g;
  }

  // gz * weight, rounded wherever it is formed: the only value of a group must cancel against its mean.
  template <class Activation, class T>
  __device__ __forceinline__ float scaled(float grad, float x) const {
    return __fmul_rn(gz<Activation, T>(grad, x), weight);
  }

  // `mean`: of gz * weight * xhat and of gz * weight over the group
  template <class Activation, class T>
  __device__ __forceinline__ float dx(float grad, float x, const GradSums& mean) const {
    return n.rstd * ((scaled<Activation, T>(grad, x) - mean.db) - xhat(x) * mean.dw);
  }
};

// A value per channel to be written, in the dtype of its vector.
template <class T>
struct ChannelOutput {
  T* narrow;
  float* wide;

  ChannelOutput(void* data, Dtype dtype)
      : narrow(dtype == Dtype::f32 ? nullptr : static_cast<T*>(data)),
        wide(dtype == Dtype::f32 ? static_cast<float*>(data) : nullptr) {}

  __device__ bool wanted() const { return narrow != nullptr || wide != nullptr; }
  __device__ void write(int64_t channel, float value) const {
    if (wide != nullptr) {
      wide[channel] = value;
    } else if (narrow != nullptr) {
      narrow[channel] = from_float<T>(value);
    }
  }
};

// The sums of parts of samples, by channel: [2, parts, c], those of gz * xhat first.
struct PartialSums {
  float* data;  // null where neither dw nor db is wanted
  int64_t parts, c;

  __device__ void write(int64_t part, int64_t channel, const GradSums& sums) const {
    data[part * c + channel] = sums.dw;
    data[(parts + part) * c + channel] = sums.db;
  }
  __device__ GradSums read(int64_t part, int64_t channel) const {
    return {data[part * c + channel], data[(parts + part) * c + channel]};
  }
};

inline PartialSums partial_sums(const GroupNormBackwardArgs& a, std::string_view rung, int64_t parts_of_sample) {
  return {a.workspace + pass_floats(rung, a), a.shape.n * parts_of_sample, a.shape.c};
}

// dw and db, in sum_parameters.cu.
void sum_parameters(const GroupNormBackwardArgs& a, const PartialSums& from, cudaStream_t stream);

}  // namespace warpsmith
