// Attention to a cache, its keys shared out evenly among the blocks that the GPU holds at once.
//
// Queries that share a head of keys, of several tokens and heads, are the rows of one product. A group of warps has a ring
// of tiles of its own, keys and values together, so that the groups of a block wait for nobody until their sums are put
// together; of a row that several blocks share, the last one adds the pieces up, in the same launch.
//   In flight, a multiprocessor: (stages - 1) tiles of each group, 128 KB and more. Bound: memory.
#pragma once

#include <type_traits>

#include "attention/kv_cache/join_pieces.cuh"
#include "attention/kv_cache/tickets.cuh"
#include "attention/kv_cache/tiles.h"
#include "device/ptx/barrier.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "tile/thread_again.cuh"

namespace warpsmith {

// The warps of a group meet; a group of one is a warp.
template <class Tile>
__device__ __forceinline__ void sync_group(int group) {
  if constexpr (Tile::warps_m == 1) {
    __syncwarp();
  } else {
    ptx::sync_warps(group + 1, kWarp * Tile::warps_m);
  }
}

// Rounds `from` to `to` of a head: its share of the sums is left in shared memory.
template <class T, class Tile>
__device__ __forceinline__ void attend(const typename Tile::Args& a, const Work& w, int kv_head, int from, int to,
                                       CacheStage<Tile>* ring, const GroupSums<Tile>& left) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = Tile::warps_n == 1 ? 0 : warp / Tile::warps_m;  // known where there is one, as is its barrier
  const int warp_m = warp - group * Tile::warps_m;
  const int first_row = w.tile * Tile::rows + 16 * warp_m;
  const bool idle = first_row >= a.rows();  // copies for the others
  CacheStage<Tile>* const stages = ring + group * Tile::stages;
  CacheLoader<Tile> loader(a, w.batch, kv_head, w.low, w.end, static_cast<int>(threadIdx.x) % (kWarp * Tile::warps_m));

  // begin copies
  const auto key_of = [&](int round) { return w.first + round * Tile::round + group * Tile::keys; };
  const auto has_tile = [&](int round) { return round < to && key_of(round) < w.end; };
#pragma unroll
  for (int i = 0; i < Tile::stages - 1; ++i) {
    if (has_tile(from + i)) {
      loader.find(key_of(from + i));
      loader.start(stages[i], key_of(from + i));
    }
    ptx::cp_async_commit();
  }
  int next = from + Tile::stages - 1;
  if (has_tile(next)) loader.find(key_of(next));

  // queries
  const OwnRows rows(a, first_row, kv_head);
  const PackedScore score(a, rows, w);
  Queries<T, Tile> q;
  const T* of_lane[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    of_lane[i] =
        static_cast<const T*>(a.q.data) + w.batch * a.q.batch + rows.token[i] * a.q.token + rows.head[i] * a.q.head;
  }
  q.load(of_lane, a.d, reinterpret_cast<uint4*>(reinterpret_cast<char*>(ring) + Tile::ring_bytes), warp_m, group == 0);
  if constexpr (Tile::queries_bytes > 0) __syncthreads();
  const float k_scale = std::is_same_v<typename Tile::C, T> ? 1.0f : a.key_scale(kv_head);
  const bool options = a.has_options() || !(k_scale > 0.0f);
  const float factor = options ? kLog2e : a.scale * k_scale * kLog2e;
  // keys that all queries of the tile see; a tree says something of the last m
  const int last_row = min(w.tile * Tile::rows + Tile::rows, a.rows()) - 1, place = w.n - a.m;
  const int all_from = place + last_row / a.group() - a.left;
  const int all_to = min(a.tree == nullptr ? w.n : place, place + w.tile * Tile::rows / a.group() + a.right + 1);

  RunningSoftmax<T, Tile> softmax;
  int slot = 0, free = Tile::stages - 1;
  for (int round = from; round < to; ++round) {
    ptx::cp_async_wait<Tile::stages - 2>();
    sync_group<Tile>(group);  // all of the tile has arrived, and all have read the one before
    if (has_tile(next)) loader.start(stages[free], key_of(next));
    ptx::cp_async_commit();
    if (has_tile(++next)) loader.find(key_of(next));
    const int key = key_of(round);
    if (!idle && key < w.end) {
      uint32_t unmasked = 0;  // bit 4 j + i: value i of s[j]
      if constexpr (Tile::masked) unmasked = unmasked_scores<Tile>(a, w, first_row, kv_head, key);
      MmaSum<T, float> s[Tile::keys / 8];
      multiply_keys<T, Tile>(s, q, stages[slot].k);
      bool special = options || key < all_from || key + Tile::keys > all_to;
      if constexpr (Tile::masked) special = special || is_masked(a);
      if (special) {
        const int lane_key = 2 * (thread_again() % 4);
#pragma unroll
        for (int j = 0; j < Tile::keys / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int own = key + 8 * j + lane_key + i % 2;
            float& x = s[j].value[i];
            if (options) x = score.option(a, x, k_scale, i / 2, own);
            bool seen = score.sees(a, i / 2, own);
            if constexpr (Tile::masked) seen = seen && (unmasked >> (4 * j + i) & 1) != 0;
            x = seen ? x : -INFINITY;
          }
        }
      }
      softmax.add(s, factor, stages[slot].v);
    }
    slot = slot + 1 == Tile::stages ? 0 : slot + 1;
    free = free + 1 == Tile::stages ? 0 : free + 1;
  }

  // leave sums, where keys were
  ptx::cp_async_wait<0>();
  __syncthreads();
  const int thread = thread_again(), lane = thread % kWarp;
  const int g = 16 * (thread / kWarp - group * Tile::warps_m) + lane / 4;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float total = softmax.whole_total(row);
    if (lane % 4 == 0) left.pieces[group][g + 8 * row] = {softmax.most[row] * factor, total};
#pragma unroll
    for (int j = 0; j < Tile::d / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        left.o[group][g + 8 * row][ValueSums<T, Tile>::column(j, i)] = softmax.sums.o[j].value[2 * row + i];
      }
    }
  }
  __syncthreads();
}

// `least`: rounds of a block. `pieces`: pairs of them that there is memory for. `range`: of the launch's counters, or
// kNoRange: these lie in the workspace, behind the pieces.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::resident)
    split_kv_kernel(const typename Tile::Args a, int tiles, int least, int64_t pieces, int range) {
  extern __shared__ __align__(128) char shared[];
  CacheStage<Tile>* const ring = reinterpret_cast<CacheStage<Tile>*>(shared);
  const GroupSums<Tile> groups(shared);
  const Pieces blocks = pieces_of<Tile>(
      a, 2 * pieces,
      range == kNoRange
          ? reinterpret_cast<unsigned*>(static_cast<float*>(a.workspace) + 2 * pieces * Tile::rows * (Tile::d + 2))
          : tickets + range * kTicketsOfLaunch);

  Shares shares;
  int before;
  Work w = first_work<Tile>(shares, before, a, tiles, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x), least);
  const auto total = static_cast<unsigned>(shares.total), of_block = static_cast<unsigned>(shares.of_block);
  for (unsigned block = blockIdx.x; block * of_block < total; block += gridDim.x) {
    int at = static_cast<int>(block) * shares.of_block;
    const int end = min(at + shares.of_block, shares.total);
    if (block != blockIdx.x) w = find_work<Tile>(before, a, tiles, at);
    while (true) {
      const int of_head = counted(a, w), kv_head = (at - before) / of_head;
      const int begin = before + kv_head * of_head, stop = min(end, begin + of_head);  // of the row; of this block
      attend<T, Tile>(a, w, kv_head, min(at - begin, w.rounds), min(stop - begin, w.rounds), ring, groups);
      const int first = begin / shares.of_block, last = (begin + of_head - 1) / shares.of_block;
      if (first == last) {
        for_each_four<Tile>(a, w, [&](int row, int column) {
          store_result<T, Tile>(a, w, kv_head, row, column, join_groups<Tile>(groups, row, column));
        });
      } else {
        const int64_t slot = slot_of(static_cast<int>(block), at == begin);
        for_each_four<Tile>(a, w, [&](int row, int column) {
          leave_piece<Tile>(blocks, slot, row, column, join_groups<Tile>(groups, row, column));
        });
        __syncthreads();
        __shared__ bool is_last;
        if (threadIdx.x == 0) {
          const unsigned others = static_cast<unsigned>(last - first);
          is_last = ptx::inc_acq_rel(blocks.counters + first, others) == others;
        }
        __syncthreads();
        if (is_last) {
          for_each_four<Tile>(a, w, [&](int row, int column) {
            store_result<T, Tile>(a, w, kv_head, row, column, left_sum<Tile>(blocks, first, last, row, column));
          });
        }
      }
      at = stop;
      if (at >= end) break;
      if (at == before + a.kv_heads * of_head) {
        before = at;
        w = work_of<Tile>(a, tiles, w.batch * tiles + w.tile + 1);
      }
      __syncthreads();  // the next row's keys take the place of sums
    }
    __syncthreads();
  }
}

// Whether the heads of a cache, in values of `size` bytes, are copied 16 bytes at a time, and queries read two at a time.
inline const char* needs_aligned_cache(const KvCacheArgs& a, int size) {
  const auto aligned = [](const HeadRows& x, int bytes, int width) {
    return reinterpret_cast<uintptr_t>(x.data) % bytes == 0 && x.batch % width == 0 && x.token % width == 0 &&
           x.head % width == 0;
  };
  const int width = 16 / size;
  const bool whole = aligned(a.k, 16, width) && aligned(a.v, 16, width) && a.d % width == 0 && a.dv % width == 0;
  if (!whole) return "needs heads of the cache that are whole packs of 16 bytes, aligned";
  if (!aligned(a.q, 4, 2)) return "needs heads of q aligned to 4 bytes";
  if (a.pages.table != nullptr && a.pages.tokens % 16 != 0) return "needs pages of a multiple of 16 tokens";
  return nullptr;
}

// Rounds are counted in 32 bits.
template <class Tile>
const char* needs_countable_rounds(const KvCacheArgs& a) {
  const int64_t tiles = ceil_div(a.rows(), Tile::rows), most = ceil_div(a.pages.capacity(), Tile::round);
  const bool fits = int64_t{a.batch} * a.kv_heads * tiles * (most + kInvariantRounds) < int64_t{1} << 30;
  return fits ? nullptr : "needs fewer or shorter sequences";
}

template <template <class, int> class Tiles>
const char* takes_split(const KvCacheArgs& a, bool e4m3_cache) {
  if (a.dtype == Dtype::f32) return "needs q in 16 bits";
  if ((a.cache_dtype == Dtype::e4m3) != e4m3_cache)
    return e4m3_cache ? "needs a cache in e4m3" : "needs a cache in 16 bits";
  if (std::max(a.d, a.dv) > 256) return "needs head dimensions of at most 256";
  if (const char* reason = needs_aligned_cache(a, e4m3_cache ? 1 : 2)) return reason;
  const char* reason = nullptr;
  dispatch_split<Tiles>(a, [&]<class T, class Tile>() { reason = needs_countable_rounds<Tile>(a); });
  return reason;
}

template <template <class, int> class Tiles, class Args>
void launch_split(const Args& a, cudaStream_t stream) {
  dispatch_split<Tiles>(a, [&]<class T, class Tile>() {
    const Split split = Split::of<Tile>(a);
    const int range = split.pieces <= kTicketsOfLaunch ? ticket_range(stream, kTicketRanges) : kNoRange;
    if (range == kNoRange) {
      float* counters = static_cast<float*>(a.workspace) + 2 * split.pieces * piece_floats(Tile::rows, Tile::d);
      check_cuda(cudaMemsetAsync(counters, 0, split.pieces * sizeof(unsigned), stream), "cudaMemsetAsync");
    }
    const LaunchConfig config{
        .grid = static_cast<unsigned>(split.blocks), .block = Tile::threads, .dynamic_smem = Tile::smem};
    warpsmith::launch<&split_kv_kernel<T, Tile>>(config, stream, a, split.tiles, split.least, split.pieces, range);
  });
}

}  // namespace warpsmith
