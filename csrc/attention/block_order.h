// Which queries of which head a block has, and in what order blocks start.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "host/ceil_div.h"
#include "host/min_max.h"

namespace warpsmith {

// Blocks of one head follow one another, so that they find its keys in L2. Where later queries see more keys, their tiles
// come first, and those of several heads take turns, as many as L2 holds the keys of: the short tiles are then the last to
// start, and even out when multiprocessors end.
struct HeadOrder {
  int tiles;        // of a head
  int pairs;        // heads of all sequences
  int together;     // pairs that take turns
  int first, step;  // the tile that starts first, and from it to the next

  int blocks() const { return tiles * pairs; }

  struct Place {
    int tile, pair;
  };

#ifdef __CUDACC__
  __device__ __forceinline__ Place place(int block) const {
    const int group = block / (tiles * together), rest = block - group * tiles * together;
    const int from = group * together, count = pairs - from < together ? pairs - from : together;
    const int tile = rest / count;
    return {first + step * tile, from + rest - tile * count};
  }
#endif
};

inline HeadOrder head_order(const AttentionArgs& a, int bm) {
  constexpr int64_t kKeysInL2 = 16 << 20;  // bytes, of the 40 to 72 MB of the GPUs at hand: others stream through it
  HeadOrder order{static_cast<int>(ceil_div(a.m, bm)), a.batch * a.q_heads, 1, 0, 1};
  if (a.right >= kUnlimited) return order;
  order.first = order.tiles - 1;
  order.step = -1;
  const int64_t bytes = std::max<int64_t>(1, int64_t{a.n} * (a.d + a.dv) * size_of(a.dtype));
  const int64_t heads = std::max<int64_t>(1, kKeysInL2 / bytes) * (a.q_heads / a.kv_heads);
  order.together = static_cast<int>(std::min<int64_t>(heads, order.pairs));
  return order;
}

}  // namespace warpsmith
