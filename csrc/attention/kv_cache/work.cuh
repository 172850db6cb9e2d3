// Which rounds of which rows a block has: each warp finds it for itself, 32 tiles of queries at a time.
#pragma once

#include "attention/kv_cache/split.h"
#include "device/ptx/trap.h"
#include "device/warp.h"

namespace warpsmith {

// A tile of queries, all heads of keys, of one sequence.
struct Work {
  int batch, tile;  // its number, and of the tile of queries in it
  int n;            // tokens of the sequence
  int low, end;     // keys that any query of the tile sees, and some before these: low is a multiple of 16
  int first;        // where rounds begin
  int rounds;       // of a head, one at least
};

// Tokens of a sequence, as whoever made the call knows them.
__device__ __forceinline__ int64_t tokens_of(const KvCacheArgs& a, int sequence) {
  return int64_t{__ldg(a.lengths + sequence)} + a.appended;
}

template <class Tile>
__device__ __forceinline__ Work work_of(const typename Tile::Args& a, int tiles, int number) {
  Work w;
  w.batch = tiles == 1 ? number : number / tiles;
  w.tile = number - w.batch * tiles;
  const int64_t held = tokens_of(a, w.batch);
  if (held < 0 || held > int64_t{a.pages.width} * a.pages.tokens) {
    ptx::trap_with("attention_with_kv_cache: a sequence is longer than its cache");
  }
  w.n = static_cast<int>(held);
  const int row = w.tile * Tile::rows, last = min(row + Tile::rows, a.rows()) - 1;
  const int place = w.n - a.m;  // of the first query
  const int from = place + row / a.group() - a.left, past = place + last / a.group() + a.right + 1;
  // pieces that do not depend on the tile's other queries begin at multiples of their length
  const int step = a.batch_invariant ? kInvariantRounds * Tile::round : 16;
  w.low = max(from, 0) / 16 * 16;
  w.first = w.low / step * step;
  w.end = min(past, w.n);
  const int keys = w.end - w.first;
  w.rounds = keys <= 0 ? 1 : (keys + Tile::round - 1) / Tile::round;
  return w;
}

// Where blocks begin in the rounds of a call. Blocks are virtual where pieces have a length of their own.
struct Shares {
  int total, of_block;
};

// Where a block begins, or the last round of all for one that has none. Of a grid for all shares the products stay below
// 2 * total.
__device__ __forceinline__ int first_round(const Shares& shares, int block) {
  const unsigned start = static_cast<unsigned>(block) * static_cast<unsigned>(shares.of_block);
  return static_cast<int>(min(start, static_cast<unsigned>(shares.total - 1)));
}

// Rounds that a head of some work counts for.
__device__ __forceinline__ int counted(const KvCacheArgs& a, const Work& w) {
  return a.batch_invariant ? (w.rounds + kInvariantRounds - 1) / kInvariantRounds * kInvariantRounds : w.rounds;
}

// `total` rounds, shared out among `blocks`.
__device__ __forceinline__ Shares shares_of(const KvCacheArgs& a, int total, int blocks, int least) {
  const int even = (total + blocks - 1) / blocks;
  return {total, a.batch_invariant ? kInvariantRounds : max(even, least)};
}

// Sums of all lanes up to one's own.
__device__ __forceinline__ int sum_upto(int lane, int own) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int lower = __shfl_up_sync(kAllLanes, own, distance);
    if (lane >= distance) own += lower;
  }
  return own;
}

// The work that has round `start` of all, and how many rounds come before it.
template <class Tile>
__device__ __forceinline__ Work find_work(int& before, const typename Tile::Args& a, int tiles, int start) {
  const int lane = threadIdx.x % kWarp, count = a.batch * tiles;
  before = 0;
  for (int i = lane;; i += kWarp) {
    const int own = i < count ? a.kv_heads * counted(a, work_of<Tile>(a, tiles, i)) : 0;
    const int upto = sum_upto(lane, own);
    const unsigned past = __ballot_sync(kAllLanes, before + upto > start);
    if (past != 0) {
      const int found = __popc(~past & (past - 1));
      before += __shfl_sync(kAllLanes, upto - own, found);
      return work_of<Tile>(a, tiles, __shfl_sync(kAllLanes, i, found));
    }
    before += __shfl_sync(kAllLanes, upto, kWarp - 1);
  }
}

// How a call is shared out among `blocks`, and the first work of `block`: what find_work would find for its first round, or
// anything where it has none. Lengths of up to 32 tiles of queries are asked for once, all of them together.
template <class Tile>
__device__ __forceinline__ Work first_work(Shares& shares, int& before, const typename Tile::Args& a, int tiles,
                                           int blocks, int block, int least) {
  const int lane = threadIdx.x % kWarp, count = a.batch * tiles;
  if (count > kWarp) {
    int mine = 0;
    for (int i = lane; i < count; i += kWarp) mine += a.kv_heads * counted(a, work_of<Tile>(a, tiles, i));
    shares = shares_of(a, warp_reduce(mine), blocks, least);
    return find_work<Tile>(before, a, tiles, first_round(shares, block));
  }
  const Work own = work_of<Tile>(a, tiles, min(lane, count - 1));
  const int mine = lane < count ? a.kv_heads * counted(a, own) : 0, upto = sum_upto(lane, mine);
  shares = shares_of(a, __shfl_sync(kAllLanes, upto, kWarp - 1), blocks, least);
  const unsigned past = __ballot_sync(kAllLanes, upto > first_round(shares, block));
  const int found = __popc(~past & (past - 1));
  before = __shfl_sync(kAllLanes, upto - mine, found);
  const auto of_found = [&](int value) { return __shfl_sync(kAllLanes, value, found); };
  return {of_found(own.batch), of_found(own.tile),  of_found(own.n),     of_found(own.low),
          of_found(own.end),   of_found(own.first), of_found(own.rounds)};
}

}  // namespace warpsmith
