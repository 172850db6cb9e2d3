// The queries of a block: whose they are, and which keys they see.
#pragma once

#include <cstdint>

#include "attention/sequence.cuh"
#include "host/ceil_div.h"

namespace warpsmith {

// Of `bm` queries. The grid has the tiles of a head along x (times `parts` blocks that share one), the heads along y and
// the sequences along z.
struct QueryTile {
  Sequence sequence;
  int head, kv_head, part;
  int first;               // of the tile's queries, in its sequence
  int queries, keys;       // of the sequence
  int key_begin, key_end;  // no query of the tile sees others

  __device__ __forceinline__ QueryTile(const AttentionArgs& a, int bm, int parts = 1)
      : sequence(a, static_cast<int>(blockIdx.z)), head(static_cast<int>(blockIdx.y)) {
    kv_head = head / (a.q_heads / a.kv_heads);
    const int tiles = static_cast<int>(gridDim.x) / parts, tile = static_cast<int>(blockIdx.x) / parts;
    part = static_cast<int>(blockIdx.x) % parts;
    // Where later queries see more keys, the longest work begins first.
    first = (a.right < kUnlimited ? tiles - 1 - tile : tile) * bm;
    queries = sequence.m;
    keys = sequence.n;
    const int place = first + keys - queries, last = min(first + bm, queries) - 1 + keys - queries;
    key_begin = max(0, place - a.left);
    key_end = max(key_begin, min(keys, last + a.right + 1));
  }

  // Token 0 of the sequence, of the tile's head.
  template <class T>
  __device__ __forceinline__ T* queries_of(const HeadRows& rows) const {
    return sequence.queries<T>(rows, head);
  }
  template <class T>
  __device__ __forceinline__ const T* keys_of(const HeadRows& rows) const {
    return sequence.keys<T>(rows, kv_head);
  }
  __device__ __forceinline__ float* lse(const AttentionArgs& a) const { return sequence.lse(a, head); }

  // Whether some query of the tile does not see some of the `bn` keys from `key` on.
  __device__ __forceinline__ bool hides(const AttentionArgs& a, int bm, int key, int bn) const {
    const int place = first + keys - queries;
    return key + bn > keys || key + bn - 1 > place + a.right || key < place + bm - 1 - a.left;
  }
};

// The grid of a rung whose blocks have `bm` queries.
inline dim3 query_grid(const AttentionArgs& a, int bm, int parts = 1) {
  return {static_cast<unsigned>(ceil_div(a.m, bm)) * parts, static_cast<unsigned>(a.q_heads),
          static_cast<unsigned>(a.batch)};
}

}  // namespace warpsmith
