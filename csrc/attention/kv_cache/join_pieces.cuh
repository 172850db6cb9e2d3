// Sums over some of the keys, put together: those of the groups of a block, then those of the blocks that share a row.
#pragma once

#include <cmath>

#include "attention/kv_cache/split_softmax.cuh"
#include "device/ptx/memory.h"

namespace warpsmith {

// The sums of a query that weigh 2^most each.
struct Piece {
  float most, total;  // of scores as powers of two; of weights
};

__device__ __forceinline__ float weight_of(float most, float top) {
  return most == -INFINITY ? 0.0f : ptx::exp2_approx_ftz(most - top);
}

// Sums of groups as they lie in shared memory, in place of keys.
template <class Tile>
struct GroupSums {
  float (*o)[Tile::rows][Tile::pitch];  // [groups]
  Piece (*pieces)[Tile::rows];

  __device__ __forceinline__ explicit GroupSums(char* shared)
      : o(reinterpret_cast<float (*)[Tile::rows][Tile::pitch]>(shared)),
        pieces(reinterpret_cast<Piece (*)[Tile::rows]>(shared +
                                                       sizeof(float) * Tile::warps_n * Tile::rows * Tile::pitch)) {}
};

// Four neighbouring columns of a query.
struct Sums {
  float4 o = {};
  Piece piece = {-INFINITY, 0.0f};

  __device__ __forceinline__ void add(const float4& x, float weight) {
    o.x = fmaf(x.x, weight, o.x);
    o.y = fmaf(x.y, weight, o.y);
    o.z = fmaf(x.z, weight, o.z);
    o.w = fmaf(x.w, weight, o.w);
  }
};

// Where blocks leave pieces.
struct Pieces {
  float* o;       // [pieces, rows, d]
  Piece* pieces;  // [pieces, rows]
  unsigned* counters;
};

template <class Tile>
__device__ __forceinline__ Pieces pieces_of(const KvCacheArgs& a, int64_t count, unsigned* counters) {
  float* first = static_cast<float*>(a.workspace);
  return {first, reinterpret_cast<Piece*>(first + count * Tile::rows * Tile::d), counters};
}

// Writes the result of four columns of a query: of row `row` of its tile.
template <class T, class Tile>
__device__ __forceinline__ void store_result(const KvCacheArgs& a, const Work& w, int kv_head, int row, int column,
                                             const Sums& sums) {
  const int packed = w.tile * Tile::rows + row, token = packed / a.group(),
            head = kv_head * a.group() + packed % a.group();
  const float sink = a.sinks == nullptr ? -INFINITY : a.sinks[head] * kLog2e;
  const float top = fmaxf(sums.piece.most, sink);
  const float share = weight_of(sums.piece.most, top), total = fmaf(sums.piece.total, share, weight_of(sink, top));
  const float v_scale = a.v_scale == nullptr ? 1.0f : a.v_scale[kv_head * a.v_scale_step];
  const float scale = total == 0.0f ? 0.0f : share / total * v_scale;
  if (column == 0 && a.lse != nullptr) {
    constexpr float kLn2 = 0.6931471805599453f;
    a.lse[(int64_t{w.batch} * a.q_heads + head) * a.m + token] =
        total == 0.0f ? -INFINITY : (top + log2f(total)) * kLn2;
  }
  const float values[4] = {sums.o.x * scale, sums.o.y * scale, sums.o.z * scale, sums.o.w * scale};
  Vec<T, 4> out;
  from_float(out, values);
  store(static_cast<T*>(a.out.data) + w.batch * a.out.batch + token * a.out.token + head * a.out.head + column, out);
}

// Queries that the tile has.
template <class Tile>
__device__ __forceinline__ int rows_of(const KvCacheArgs& a, const Work& w) {
  return min(a.rows() - w.tile * Tile::rows, Tile::rows);
}

// Calls body(row, column) for every four columns of the tile's queries, each by one thread.
template <class Tile, class Body>
__device__ __forceinline__ void for_each_four(const KvCacheArgs& a, const Work& w, Body&& body) {
  constexpr int kFours = Tile::d / 4;
  const int rows = rows_of<Tile>(a, w);
  for (int i = static_cast<int>(threadIdx.x); i < rows * kFours; i += Tile::threads) {
    const int row = i / kFours, column = i % kFours * 4;
    if (column < a.dv) body(row, column);
  }
}

// The sums of all groups of this block.
template <class Tile>
__device__ __forceinline__ Sums join_groups(const GroupSums<Tile>& groups, int row, int column) {
  Sums sums;
#pragma unroll
  for (int i = 0; i < Tile::warps_n; ++i) sums.piece.most = fmaxf(sums.piece.most, groups.pieces[i][row].most);
#pragma unroll
  for (int i = 0; i < Tile::warps_n; ++i) {
    const Piece piece = groups.pieces[i][row];
    const float weight = weight_of(piece.most, sums.piece.most);
    sums.piece.total = fmaf(piece.total, weight, sums.piece.total);
    sums.add(*reinterpret_cast<const float4*>(&groups.o[i][row][column]), weight);
  }
  return sums;
}

template <class Tile>
__device__ __forceinline__ void leave_piece(const Pieces& to, int64_t slot, int row, int column, const Sums& sums) {
  if (column == 0) to.pieces[slot * Tile::rows + row] = sums.piece;
  ptx::store_at_once(reinterpret_cast<uint4*>(to.o + (slot * Tile::rows + row) * Tile::d + column),
                     *reinterpret_cast<const uint4*>(&sums.o));
}

// A row's piece of block `first` is the last that this block left, those of the following ones are their first.
__device__ __forceinline__ int64_t slot_of(int block, bool begins) { return 2 * int64_t{block} + (begins ? 1 : 0); }

// What `count` pieces of four columns of a query add up to, always in the same order; load(i, piece, o) brings one. Several
// are asked for at once: a thread that waited for one after the other would do nothing else.
template <int at_once, class Load>
__device__ __forceinline__ Sums sum_of(int count, Load&& load) {
  Sums sums;
  for (int first = 0; first < count; first += at_once) {
    Piece pieces[at_once];
    float4 o[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      pieces[i] = {-INFINITY, 0.0f};
      o[i] = {};
      if (first + i < count) load(first + i, pieces[i], o[i]);
    }
    float top = sums.piece.most;
#pragma unroll
    for (int i = 0; i < at_once; ++i) top = fmaxf(top, pieces[i].most);
    const float kept = weight_of(sums.piece.most, top);
    sums.piece = {top, sums.piece.total * kept};
    sums.o = {sums.o.x * kept, sums.o.y * kept, sums.o.z * kept, sums.o.w * kept};
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const float weight = weight_of(pieces[i].most, top);
      sums.piece.total = fmaf(pieces[i].total, weight, sums.piece.total);
      sums.add(o[i], weight);
    }
  }
  return sums;
}

// Of the pieces that blocks first to last left of a row.
template <class Tile>
__device__ __forceinline__ Sums left_sum(const Pieces& from, int first, int last, int row, int column) {
  constexpr int kAtOnce = 16;
  return sum_of<kAtOnce>(last - first + 1, [&](int i, Piece& piece, float4& o) {
    const int64_t at = slot_of(first + i, i == 0) * Tile::rows + row;
    const float2 raw = __ldcg(reinterpret_cast<const float2*>(from.pieces + at));
    piece = {raw.x, raw.y};
    o = __ldcg(reinterpret_cast<const float4*>(from.o + at * Tile::d + column));
  });
}

}  // namespace warpsmith
