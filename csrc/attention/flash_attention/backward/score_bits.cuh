// A bit for each score that a lane has of a warp's keys and queries: whether it is seen, whether dropout keeps it.
//   Scores lie as s^T leaves mma.sync: of each of [rows][tiles] fragments, two neighbouring queries of a key, and of the
//   key 8 after it. The bit of value e of fragment (i, c) is 4 (i tiles + c) + e. All that is asked for is known before the
//   products are, when registers are free.
#pragma once

#include <cstdint>

#include "attention/flash_attention/backward/rows.cuh"
#include "attention/mask.cuh"
#include "device/warp.h"

namespace warpsmith {

template <int rows, int tiles>
struct ScoreBits {
  static_assert(rows * tiles * 4 <= 32);

  // Of the window and the sequence. `query`, `key`: those of the lane's first score.
  __device__ __forceinline__ static uint32_t in_range(const AttentionArgs& a, const GradientRows& s, int query,
                                                      int key) {
    const int past = key - s.place - query, keys_left = s.n - key, queries_left = s.m - query;
    uint32_t found = 0;
#pragma unroll
    for (int bit = 0; bit < rows * tiles * 4; ++bit) {
      const int down = bit / 4 / tiles * 16 + bit % 4 / 2 * 8, across = bit / 4 % tiles * 8 + bit % 2;
      const int own = past + down - across;
      const bool seen = down < keys_left && across < queries_left && own <= a.right && -own <= a.left;
      found |= (seen ? 1u : 0u) << bit;
    }
    return found;
  }

  // Of any mask, a query at a time.
  __device__ __forceinline__ static uint32_t visible(const OptionMask& mask, const GradientRows& s, int query,
                                                     int key) {
    uint32_t found = 0;
#pragma unroll 1
    for (int j = 0; j < 2 * tiles; ++j) {
      const int own = query + j / 2 * 8 + j % 2;
      if (own >= s.m) break;
      float x[2 * rows] = {};
      mask.hide(x, own, [key](int i) { return key + 8 * i; });
      uint32_t seen = 0;
#pragma unroll
      for (int i = 0; i < 2 * rows; ++i) seen |= (x[i] == 0.0f ? 1u : 0u) << (i / 2 * tiles * 4 + i % 2 * 2);
      found |= seen << (j / 2 * 4 + j % 2);
    }
    return found;
  }

  // Of dropout. A call of the generator serves four neighbouring keys, which four lanes have: where rows of the
  // probabilities are multiples of four, each asks for one of the four values of a fragment on behalf of all, and they
  // exchange what they found. `key` is a multiple of 8 for the warp's first lanes. For whole warps.
  __device__ __forceinline__ static uint32_t kept(const AttentionArgs& a, const GradientRows& s, int head, int query,
                                                  int key) {
    if (a.n % 4 != 0) return kept_one_by_one(a, s, head, query, key);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, place = lane / 4 % 4;
    const uint64_t line = (static_cast<uint64_t>(s.batch) * a.q_heads + head) * a.m + query + place % 2;
    const uint32_t row_groups = static_cast<uint32_t>(a.n) / 4;
    const uint64_t first = line * row_groups + static_cast<uint32_t>(key - place) / 4 + place / 2 * 2;
    uint32_t asked = 0;  // value `place` of each fragment, for the four lanes
#pragma unroll 2
    for (int fragment = 0; fragment < rows * tiles; ++fragment) {
      const uint32_t i = fragment / tiles, c = fragment % tiles;
      const uint4 words = a.dropout.words(first + uint64_t{8 * c} * row_groups + 4 * i);
      const uint32_t least = a.dropout.last_dropped;
      const uint32_t four = (words.x > least ? 1u : 0u) | (words.y > least ? 2u : 0u) | (words.z > least ? 4u : 0u) |
                            (words.w > least ? 8u : 0u);
      asked |= four << 4 * fragment;
    }
    uint32_t found = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t of_value = __shfl_sync(kAllLanes, asked, (lane & ~12) | e << 2);
      found |= (of_value >> place & 0x11111111u) << e;
    }
    return found;
  }

 private:
  __device__ __forceinline__ static uint32_t kept_one_by_one(const AttentionArgs& a, const GradientRows& s, int head,
                                                             int query, int key) {
    uint32_t found = 0;
#pragma unroll 1
    for (int bit = 0; bit < rows * tiles * 4; ++bit) {
      const int own_query = query + bit / 4 % tiles * 8 + bit % 2,
                own_key = key + bit / 4 / tiles * 16 + bit % 4 / 2 * 8;
      if (keeps(a, s, head, own_query, own_key)) found |= 1u << bit;
    }
    return found;
  }
};

}  // namespace warpsmith
