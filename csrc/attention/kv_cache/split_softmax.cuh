// What a warp keeps of 16 queries while it goes through keys, and how it takes in a tile of scores.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/kv_cache/cache_tile.cuh"
#include "attention/kv_cache/work.cuh"
#include "attention/score.cuh"
#include "device/ptx/math.h"

namespace warpsmith {

// The two queries of a lane, in rows lane / 4 and lane / 4 + 8 of the warp's tile. Rows past the last query pass for it,
// and are not stored.
struct OwnRows {
  int token[2], head[2];  // head: of q

  __device__ __forceinline__ OwnRows(const KvCacheArgs& a, int first_row, int kv_head) {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4, group = a.group();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(first_row + g + 8 * i, a.rows() - 1);
      token[i] = row / group;
      head[i] = kv_head * group + row - token[i] * group;
    }
  }
};

// From products to scores, and what is seen.
struct PackedScore {
  int place[2];  // of the query among the keys
  int n, batch;
  float slope[2];

  __device__ __forceinline__ PackedScore(const KvCacheArgs& a, const OwnRows& rows, const Work& w)
      : n(w.n), batch(w.batch) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      place[i] = w.n - a.m + rows.token[i];
      slope[i] = a.slopes == nullptr ? 0.0f : a.slopes[w.batch * a.slopes_batch + rows.head[i]];
    }
  }

  // `k_scale`: of the head of keys.
  __device__ __forceinline__ float option(const KvCacheArgs& a, float product, float k_scale, int row, int key) const {
    float score = product * (a.scale * k_scale);
    if (a.softcap > 0.0f) score = a.softcap * soft_tanh<false>(score / a.softcap);
    const int away = key - place[row];
    return fmaf(-slope[row], static_cast<float>(away < 0 ? -away : away), score);
  }

  __device__ __forceinline__ bool sees(const KvCacheArgs& a, int row, int key) const {
    bool seen = key < n && key >= place[row] - a.left && key <= place[row] + a.right;
    const int first = n - a.m, drafted = key - first;  // the last m keys are those of which a tree speaks
    if (a.tree != nullptr && drafted >= 0) {
      const int64_t word = __ldg(a.tree + int64_t{batch} * a.m + (place[row] - first));
      seen = seen && (static_cast<uint64_t>(word) >> (drafted & 63) & 1) != 0;
    }
    return seen;
  }
};

template <class T, class Tile>
struct RunningSoftmax {
  ValueSums<T, Tile> sums;
  float most[2] = {-INFINITY, -INFINITY};  // the largest score so far, in units of `factor`
  float total[2] = {};                     // of weights, each lane its own share

  // Scores to weights, to which what was summed before is rescaled. exp of a score is exp2(score * factor).
  __device__ __forceinline__ void add(MmaSum<T, float> (&s)[Tile::keys / 8], float factor, const uint16_t* values) {
    float base[2];
    bool grew = false;
    float rescale[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float top = most[row];
#pragma unroll
      for (int j = 0; j < Tile::keys / 8; ++j) top = fmaxf(top, fmaxf(s[j].value[2 * row], s[j].value[2 * row + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      base[row] = top == -INFINITY ? 0.0f : top * factor;  // nothing was seen yet
      grew = grew || top != most[row];
      rescale[row] = ptx::exp2_approx_ftz(fmaf(most[row], factor, -base[row]));
      most[row] = top;
    }
    // The largest score is seldom among the last ones, and rescaling costs as much as all else between two products.
    if (__any_sync(kAllLanes, grew)) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        total[row] *= rescale[row];
#pragma unroll
        for (auto& sum : sums.o) {
          sum.value[2 * row] *= rescale[row];
          sum.value[2 * row + 1] *= rescale[row];
        }
      }
    }
#pragma unroll
    for (int step = 0; step < Tile::keys / 16; ++step) {
      uint32_t weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i % 2;
        const float* pair = s[2 * step + i / 2].value + 2 * row;
        const float two[2] = {ptx::exp2_approx_ftz(fmaf(pair[0], factor, -base[row])),
                              ptx::exp2_approx_ftz(fmaf(pair[1], factor, -base[row]))};
        total[row] += two[0] + two[1];
        Vec<Weight<T, Tile>, 2> narrow;
        from_float(narrow, two);
        weights[i] = reinterpret_cast<const uint32_t&>(narrow);
      }
      sums.add(weights, values, step);
    }
  }

  // Over the four lanes of a row.
  __device__ __forceinline__ float whole_total(int row) const { return warp_reduce<4>(total[row]); }
};

}  // namespace warpsmith
