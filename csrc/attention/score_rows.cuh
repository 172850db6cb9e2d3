// A warp's scores as mma.sync leaves them: masks, the softmax that runs along with the keys, and the way to the operand of
// the next product.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/query_tile.cuh"
#include "device/convert.h"
#include "device/ptx/math.h"
#include "device/warp.h"
#include "tile/warp_mma.cuh"

namespace warpsmith {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// The two rows and the columns of a fragment of 16 x 8 that a lane has: rows row and row + 8, columns col and col + 1.
struct LaneRows {
  int row, col;
  __device__ __forceinline__ LaneRows() : row(static_cast<int>(threadIdx.x) % kWarp / 4), col(threadIdx.x % 4 * 2) {}
};

// 16 rows of `n` scores: of each 8 columns two neighbours of either row.
template <int n>
struct ScoreRows {
  float value[n / 8][4];

  template <class T, class Acc>
  __device__ __forceinline__ explicit ScoreRows(const MmaSum<T, Acc> (&sums)[n / 8]) {
#pragma unroll
    for (int j = 0; j < n / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = sums[j].pair(half);
        value[j][2 * half] = pair.x;
        value[j][2 * half + 1] = pair.y;
      }
    }
  }

  // `query`: that of the first row. `key`: that of the first column.
  __device__ __forceinline__ void hide(const AttentionArgs& a, const QueryTile& tile, int query, int key) {
    const LaneRows lane;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = query + lane.row + 8 * half + tile.keys - tile.queries;
      const int first = place - a.left - key - lane.col, last = min(place + a.right, tile.keys - 1) - key - lane.col;
#pragma unroll
      for (int j = 0; j < n / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = 8 * j + c;
          if (at < first || at > last) value[j][2 * half + c] = -INFINITY;
        }
      }
    }
  }

  // The largest of a lane's part of a row.
  __device__ __forceinline__ float most(int half) const {
    float most = fmaxf(value[0][2 * half], value[0][2 * half + 1]);
#pragma unroll
    for (int j = 1; j < n / 8; ++j) most = fmaxf(most, fmaxf(value[j][2 * half], value[j][2 * half + 1]));
    return most;
  }

  // 2^(scale * score - most), and returns their sum.
  __device__ __forceinline__ float raise(int half, float scale, float most) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < n / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& x = value[j][2 * half + c];
        x = ptx::exp2_approx_ftz(fmaf(x, scale, -most));
        sum += x;
      }
    }
    return sum;
  }
};

// Of the four lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// What is subtracted from the exponents of a row whose largest is `most`: of a row that has seen nothing, nothing, because
// infinity less infinity is no number.
__device__ __forceinline__ float subtrahend(float most) { return most == -INFINITY ? 0.0f : most; }

// The softmax of a lane's two rows, over the keys seen so far. Logarithms are to base 2.
struct RunningSoftmax {
  float most[2] = {-INFINITY, -INFINITY};  // of scale * score
  float sum[2] = {0.0f, 0.0f};             // the lane's share of sum(2^(scale * score - most))

  // Turns scores into 2^(scale * score - most); `shrink` is what the sums of earlier keys become less by.
  template <int n>
  __device__ __forceinline__ void add(float (&shrink)[2], ScoreRows<n>& scores, float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = fmaxf(most[half], quad_max(scores.most(half)) * scale), less = subtrahend(largest);
      shrink[half] = ptx::exp2_approx_ftz(most[half] - less);
      most[half] = largest;
      sum[half] = fmaf(sum[half], shrink[half], scores.raise(half, scale, less));
    }
  }

  // Ends the sums: 1 / sum, 0 for a row that has seen nothing.
  __device__ __forceinline__ void finish(float (&inverse)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = quad_sum(sum[half]);
      inverse[half] = sum[half] == 0.0f ? 0.0f : 1.0f / sum[half];
    }
  }

  // After finish(): the natural logarithm of the sum of exp.
  __device__ __forceinline__ float lse(int half) const {
    return sum[half] == 0.0f ? -INFINITY : (most[half] + log2f(sum[half])) * kLn2;
  }
};

template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, f16>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// Probabilities as the left operand of mma.sync: 16 x 16 of them are two fragments of sums side by side, value for value.
template <class T, int n>
struct Probabilities {
  uint32_t a[n / 16][4];

  __device__ __forceinline__ explicit Probabilities(const ScoreRows<n>& scores) {
#pragma unroll
    for (int k = 0; k < n / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = &scores.value[2 * k + i / 2][i % 2 * 2];
        a[k][i] = pack_pair<T>(two[0], two[1]);
      }
    }
  }
};

// Sums of a row each less by a factor of its own.
template <class T>
__device__ __forceinline__ void multiply(MmaSum<T, float>& sums, const float (&by)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sums.value[i] *= by[i / 2];
}

__device__ __forceinline__ __half2& as_half2(uint32_t& pair) { return reinterpret_cast<__half2&>(pair); }

__device__ __forceinline__ void multiply(MmaSum<f16, f16>& sums, const float (&by)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    as_half2(sums.value[half]) = __hmul2(as_half2(sums.value[half]), __float2half2_rn(by[half]));
  }
}

// sums = sums * by + more.
template <class T>
__device__ __forceinline__ void multiply_add(MmaSum<T, float>& sums, const float (&by)[2], MmaSum<T, float>& more) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sums.value[i] = fmaf(sums.value[i], by[i / 2], more.value[i]);
}

__device__ __forceinline__ void multiply_add(MmaSum<f16, f16>& sums, const float (&by)[2], MmaSum<f16, f16>& more) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    as_half2(sums.value[half]) =
        __hfma2(as_half2(sums.value[half]), __float2half2_rn(by[half]), as_half2(more.value[half]));
  }
}

// Two columns of mma tiles of the right operand, as FragmentReader reads them together.
template <class T, class Acc>
__device__ __forceinline__ void add_two(MmaSum<T, Acc>* sums, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  sums[0].add(a, first);
  sums[1].add(a, second);
}

}  // namespace warpsmith
