// Gradients of heads wider than 256 on tensor cores: dk and dv in one pass, dq in another, which computes scores again.
//   A block holds rows of keys and values (or of queries and their gradients) whole, and streams the others 64 at a time,
//   cut along d into chunks: each chunk once for the scores and once for the gradients, whose sums stay in registers,
//   every warp with columns of its own in each chunk. Nothing is added up in memory: the sums have one order.
#pragma once

#include <cstdint>

#include "attention/flash_attention/backward/rows.cuh"
#include "attention/flash_attention/backward/sums.cuh"
#include "attention/flash_attention/backward/tile_gradient.cuh"
#include "attention/mask.cuh"
#include "attention/score.cuh"
#include "tile/panels.h"

namespace warpsmith {

enum class Pass { keys, queries };  // whose gradients it computes, and whose rows a block holds

// What a Tile implies:
//   width   of heads
//   rows    that a block holds, 16 for each of the groups of warps
//   chunk   values of a row that are streamed together
//   stages  chunks in shared memory
template <class Tile_, Pass pass_>
struct LargeShape : Tile_ {
  using Tile = Tile_;
  static constexpr Pass pass = pass_;
  static constexpr bool keys = pass == Pass::keys;
  static constexpr int warps = 8, threads = 32 * warps, streamed = 64;
  static constexpr int groups = Tile::rows / 16, sharers = warps / groups;  // warps that share a group's rows
  static constexpr int own = streamed / sharers;                            // streamed rows of a warp's scores
  static constexpr int own_cols = Tile::chunk / sharers, chunks = Tile::width / Tile::chunk;
  static constexpr int turns = (keys ? 4 : 3) * chunks;  // chunks of a step
  static_assert(turns % Tile::stages == 0, "a turn has the same stage in every step");
  static_assert(own % 8 == 0 && own_cols % 16 == 0 && Tile::width % Tile::chunk == 0);

  using Held = OperandTile<Along::k, Tile::rows, Tile::width, Panels>;
  using Chunk = OperandTile<Along::k, streamed, Tile::chunk, Panels>;
  using ChunkOfSums = OperandTile<Along::mn, Tile::chunk, streamed, Panels>;
  using Scores = OperandTile<Along::k, Tile::rows, streamed, Panels>;
};

// A head of queries, and a block of streamed rows.
struct LargeStep {
  int head, block;
};

template <class T, class Shape>
struct LargeShared {
  alignas(128) T held[2][Shape::Held::size];  // k and v, or q and the gradient
  alignas(128) T ring[Shape::stages][Shape::Chunk::size];
  alignas(128) T ds[Shape::Scores::size];
  alignas(128) T p[Shape::keys ? Shape::Scores::size : 8];
  // What every thread knows alike and seldom asks for lies here, not in registers.
  struct Known {
    GradientRows rows;
    int head, block, first, group;
    int from, blocks;          // of streamed rows
    int first_head, end_head;  // of queries, where there are streamed rows
  } known;
  float slopes[Shape::threads];     // of each thread, the gradient of the head's slope
  LargeStep steps[Shape::threads];  // of each thread, which needs its own once in a while
};

template <class T, class Shape>
class LargeBlock {
  using Shared = LargeShared<T, Shape>;
  static constexpr bool kKeys = Shape::keys;
  static constexpr int kTiles = Shape::own / 8, kSums = Shape::own_cols / 8;
  using Sums = MmaSum<T, float>[Shape::chunks][kSums];
  using Scores = MmaSum<T, float>[kTiles];

 public:
  __device__ __forceinline__ LargeBlock(const AttentionBackwardArgs& a, const BackwardWorkspace& w, int part, int block,
                                        Shared& shared)
      : a_(a),
        w_(w),
        shared_(shared),
        s_(shared.known.rows),
        head_(shared.known.head),
        block_(shared.known.block),
        first_(shared.known.first),
        group_(shared.known.group),
        from_(shared.known.from),
        blocks_(shared.known.blocks),
        end_head_(shared.known.end_head) {
    shared.slopes[threadIdx.x] = 0.0f;
    if (threadIdx.x == 0) {
      const int heads = kKeys ? a.of.kv_heads : a.of.q_heads;
      auto& known = shared.known;
      known.rows = GradientRows(a, part / heads);
      known.head = part % heads;
      known.block = block;
      known.first = block * Shape::rows;
      known.group = a.of.q_heads / a.of.kv_heads;
      find_steps(known);
      known.first_head = kKeys ? known.head * known.group : known.head;
      known.end_head = known.first_head + (known.blocks == 0 ? 0 : (kKeys ? known.group : 1));
    }
    __syncthreads();
  }

  __device__ __forceinline__ void run() {
    const int left = (kKeys ? s_.n : s_.m) - first_;
    if (left <= 0) return;
    if (kKeys && a_.dslopes != nullptr && blocks_ == 0) {
      for (int head = 0; head < group_; ++head) leave_slope_sum(head_ * group_ + head);
    }

    // rows that stay, and the first chunks
    hold(shared_.held[0], kKeys ? a_.of.k : a_.of.q, a_.of.d, left);
    hold(shared_.held[1], kKeys ? a_.of.v : a_.grad, a_.of.dv, left);
    Step& step = shared_.steps[threadIdx.x];
    step = {shared_.known.first_head, from_};
    if (Shape::stages > 1 && step.head < end_head_) {
#pragma unroll
      for (int turn = 0; turn < Shape::stages - 1; ++turn) {
        start(turn, shared_.ring[turn], step);
        ptx::cp_async_commit();
      }
    }

    // go through the others
    while (step.head < end_head_) {
      const auto take = [&](int turn) -> const T* {
        if constexpr (Shape::stages == 1) {
          __syncthreads();  // the chunk before has been read
          start(turn, shared_.ring[0], step);
          ptx::cp_async_commit();
          ptx::cp_async_wait<0>();
          __syncthreads();
          return shared_.ring[0];
        } else {
          ptx::cp_async_wait<Shape::stages - 2>();
          __syncthreads();  // this chunk is here, and the one before has been read
          const int later = turn + Shape::stages - 1;
          T* to = shared_.ring[later % Shape::stages];
          if (later < Shape::turns) {
            start(later, to, step);
          } else if (const Step next = after(step); next.head < end_head_) {
            start(later - Shape::turns, to, next);
          }
          ptx::cp_async_commit();
          return shared_.ring[turn % Shape::stages];
        }
      };
      take_step(take);
      const Step next = after(step);
      if (kKeys && a_.dslopes != nullptr && next.head != step.head) leave_slope_sum(step.head);
      step = next;
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    finish();
  }

 private:
  using Step = LargeStep;

  __device__ __forceinline__ Step after(const Step& step) const {
    if (step.block + 1 < from_ + blocks_) return {step.head, step.block + 1};
    return {step.head + 1, from_};
  }

  // The first of a warp's rows, and which of those that share them it is.
  __device__ __forceinline__ static int row(int thread) { return thread / kWarp % Shape::groups * 16; }
  __device__ __forceinline__ static int part(int thread) { return thread / kWarp / Shape::groups; }

  // Blocks of streamed rows that meet the block's own.
  __device__ __forceinline__ void find_steps(typename Shared::Known& known) const {
    if constexpr (kKeys) {
      const QueryBlocks found = queries_of<Shape::streamed, Shape::rows>(a_.of, known.rows, known.block);
      known.from = found.first;
      known.blocks = found.count;
    } else {
      const RangeMask range(a_.of, known.rows, known.head);
      const int last = min(known.first + Shape::rows, known.rows.m) - 1;
      const int first = range.first(known.first), end = range.end(last);
      known.from = first / Shape::streamed;
      known.blocks = end > first ? (end - 1) / Shape::streamed - known.from + 1 : 0;
    }
  }

  __device__ __forceinline__ void hold(T* tile, const HeadRows& x, int width, int left) const {
    const T* from = kKeys ? s_.template key<const T>(x, head_, first_) : s_.template query<const T>(x, head_, first_);
    RowChunks<typename Shape::Held, Shape::threads>(width).start(tile, from, x.token, left);
    ptx::cp_async_commit();
  }

  // Starts copying what a step needs in its turn: chunks of the first operand and of the second for scores, of the second
  // for dv, of the first for dk or dq.
  __device__ __forceinline__ void start(int turn, T* to, const Step& step) const {
    const int sweep = turn / Shape::chunks, col = turn % Shape::chunks * Shape::chunk;
    const bool second = kKeys ? sweep == 1 || sweep == 2 : sweep == 1;
    const HeadRows& x = kKeys ? (second ? a_.grad : a_.of.q) : (second ? a_.of.v : a_.of.k);
    const int row = step.block * Shape::streamed, left = (kKeys ? s_.m : s_.n) - row;
    const T* from =
        kKeys ? s_.template query<const T>(x, step.head, row) : s_.template key<const T>(x, step.head / group_, row);
    const int width = (second ? a_.of.dv : a_.of.d) - col;
    RowChunks<typename Shape::Chunk, Shape::threads>(width, thread_again()).start(to, from + col, x.token, left);
  }

  template <class Take>
  __device__ __forceinline__ void take_step(const Take& take) {
    // products of the rows
    Scores p{}, dp{};
#pragma unroll
    for (int c = 0; c < Shape::chunks; ++c) multiply_chunk(p, shared_.held[0], c, take(c));
#pragma unroll
    for (int c = 0; c < Shape::chunks; ++c) multiply_chunk(dp, shared_.held[1], c, take(Shape::chunks + c));

    // gradients of scores
    differentiate(p, dp, shared_.steps[threadIdx.x]);
    if constexpr (kKeys) put(shared_.p, p);
    put(shared_.ds, dp);

    // sums: the barrier of the first chunk lets all warps have written
    uint32_t scores[Shape::streamed / 16][4];
    if constexpr (kKeys) {
#pragma unroll
      for (int c = 0; c < Shape::chunks; ++c) {
        const T* chunk = take(2 * Shape::chunks + c);
        if (c == 0) read_scores(scores, shared_.p);
        add_chunk(dv_[c], scores, chunk);
      }
    }
#pragma unroll
    for (int c = 0; c < Shape::chunks; ++c) {
      const T* chunk = take((kKeys ? 3 : 2) * Shape::chunks + c);
      if (c == 0) read_scores(scores, shared_.ds);
      add_chunk(sums_[c], scores, chunk);
    }
  }

  // scores += held streamed^T over a chunk of d.
  __device__ __forceinline__ void multiply_chunk(Scores& scores, const T* held, int c, const T* chunk) const {
    const int thread = thread_again(), part = LargeBlock::part(thread);
    const FragmentReader<Side::a, typename Shape::Held> read_held(row(thread), thread);
    if constexpr (Shape::own == 8) {
      // eight streamed rows, of which one read brings two steps along d
      const int lane = thread % kWarp, at = Shape::Chunk::at(part * 8 + lane % 8, lane / 8 * 8);
#pragma unroll 2
      for (int k = 0; k < Shape::chunk; k += 32) {
        uint32_t a[2][4], b[4];
        read_held.read(a[0], held, 0, c * Shape::chunk + k);
        read_held.read(a[1], held, 0, c * Shape::chunk + k + 16);
        ptx::ldmatrix(b, chunk + Shape::Chunk::moved(at, 0, k));
        scores[0].add(a[0], {b[0], b[1]});
        scores[0].add(a[1], {b[2], b[3]});
      }
    } else {
      const FragmentReader<Side::b, typename Shape::Chunk> read_chunk(part * Shape::own, thread);
#pragma unroll 4
      for (int k = 0; k < Shape::chunk; k += 16) {
        uint32_t a[4];
        read_held.read(a, held, 0, c * Shape::chunk + k);
#pragma unroll
        for (int j = 0; j < kTiles / 2; ++j) {
          uint32_t b[4];
          read_chunk.read(b, chunk, 16 * j, k);
          scores[2 * j].add(a, {b[0], b[1]});
          scores[2 * j + 1].add(a, {b[2], b[3]});
        }
      }
    }
  }

  // From both products to what dropout keeps of p, and ds.
  __device__ __forceinline__ void differentiate(Scores& p, Scores& dp, const Step& step) {
    const int thread = thread_again(), lane = thread % kWarp;
    const int row = first_ + LargeBlock::row(thread) + lane / 4;
    const int col = step.block * Shape::streamed + part(thread) * Shape::own + lane % 4 * 2;
    const int64_t first_row = step.head * a_.q_rows + s_.q_row;
    const auto query_of = [&](int bit) { return kKeys ? col + bit / 4 * 8 + bit % 2 : row + bit % 4 / 2 * 8; };
    const auto key_of = [&](int bit) { return kKeys ? row + bit % 4 / 2 * 8 : col + bit / 4 * 8 + bit % 2; };
    // A bit for each score, in a loop that is not unrolled: what is asked for is long.
    uint32_t seen = 0, kept = ~0u;
    {
      const OptionMask mask(a_.of, s_, step.head);
#pragma unroll 1
      for (int bit = 0; bit < kTiles * 4; ++bit) {
        const int query = query_of(bit), key = key_of(bit);
        if (query < s_.m && key < s_.n && mask(query, key)) seen |= 1u << bit;
        if (a_.of.dropout.active && !keeps(a_.of, s_, step.head, query, key)) kept &= ~(1u << bit);
      }
    }
    const OptionScore<T> score(a_.of, s_, step.head);
    float slopes = 0.0f;
#pragma unroll
    for (int bit = 0; bit < kTiles * 4; ++bit) {
      const int query = query_of(bit), key = key_of(bit);
      float &product = p[bit / 4].value[bit % 4], &grad = dp[bit / 4].value[bit % 4];
      float weight = 0.0f, ds = 0.0f, growth = 1.0f;
      if ((seen >> bit & 1u) != 0) {
        growth = score.growth(product);
        weight = ptx::exp2_approx_ftz(fmaf(score(product, query, key), kLog2e, -w_.lse2[first_row + query]));
        const bool keeps_it = (kept >> bit & 1u) != 0;
        const float keep = a_.of.dropout.scale;
        ds = weight * ((keeps_it ? grad * keep : 0.0f) - w_.dots[first_row + query]);
        weight = keeps_it ? weight * keep : 0.0f;
        if (kKeys) slopes -= static_cast<float>(abs(key - s_.place - query)) * ds;
      }
      product = weight;
      grad = ds * growth;
    }
    if (kKeys && a_.dslopes != nullptr) shared_.slopes[thread] += slopes;
  }

  __device__ __forceinline__ void put(T* tile, const Scores& scores) const {
    const int thread = thread_again(), lane = thread % kWarp;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int at = Shape::Scores::at(row(thread) + lane / 4, part(thread) * Shape::own + 8 * j) + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = scores[j].pair(half);
        *reinterpret_cast<uint32_t*>(tile + Shape::Scores::moved(at, 8 * half, 0)) = operand_word<T>(pair.x, pair.y);
      }
    }
  }

  __device__ __forceinline__ void read_scores(uint32_t (&scores)[Shape::streamed / 16][4], const T* tile) const {
    const int thread = thread_again();
    const FragmentReader<Side::a, typename Shape::Scores> read(row(thread), thread);
#pragma unroll
    for (int k = 0; k < Shape::streamed / 16; ++k) read.read(scores[k], tile, 0, 16 * k);
  }

  // sums += scores streamed, over the warp's columns of a chunk.
  __device__ __forceinline__ void add_chunk(MmaSum<T, float> (&sums)[kSums],
                                            const uint32_t (&scores)[Shape::streamed / 16][4], const T* chunk) const {
    const int thread = thread_again();
    const FragmentReader<Side::b, typename Shape::ChunkOfSums> read(16 * part(thread), thread);
#pragma unroll
    for (int k = 0; k < Shape::streamed / 16; ++k) {
#pragma unroll
      for (int j = 0; j < kSums / 2; ++j) {
        uint32_t b[4];
        read.read(b, chunk, 16 * Shape::sharers * j, 16 * k);
        sums[2 * j].add(scores[k], {b[0], b[1]});
        sums[2 * j + 1].add(scores[k], {b[2], b[3]});
      }
    }
  }

  __device__ __forceinline__ void leave_slope_sum(int head) {
    __shared__ float of_warps[Shape::warps];
    const int thread = thread_again();
    const float sum = warp_reduce(shared_.slopes[thread]);
    if (thread % kWarp == 0) of_warps[thread / kWarp] = sum;
    __syncthreads();
    if (thread == 0) {
      float total = 0.0f;
      for (int i = 0; i < Shape::warps; ++i) total += of_warps[i];
      w_.slope_sums[head * a_.k_rows + s_.k_row + block_] = total;
    }
    __syncthreads();
    shared_.slopes[thread] = 0.0f;
  }

  __device__ __forceinline__ void put_gradient(T* tile, const Sums& sums, float scale) const {
    const int thread = thread_again();
#pragma unroll
    for (int c = 0; c < Shape::chunks; ++c) {
      const MmaSum<T, float>(&one)[1][kSums] = reinterpret_cast<const MmaSum<T, float>(&)[1][kSums]>(sums[c]);
      put_sums<typename Shape::Held, Shape::sharers>(tile, one, scale, row(thread),
                                                     c * Shape::chunk + 16 * part(thread));
    }
  }

  __device__ __forceinline__ void finish() {
    const int left = (kKeys ? s_.n : s_.m) - first_, thread = thread_again();
    put_gradient(shared_.held[0], sums_, a_.of.scale);
    if constexpr (kKeys) put_gradient(shared_.held[1], dv_, 1.0f);
    __syncthreads();
    const HeadRows& to = kKeys ? a_.dk : a_.dq;
    T* rows = kKeys ? s_.template key<T>(to, head_, first_) : s_.template query<T>(to, head_, first_);
    RowChunks<typename Shape::Held, Shape::threads>(a_.of.d, thread).store(rows, to.token, left, shared_.held[0]);
    if constexpr (kKeys) {
      RowChunks<typename Shape::Held, Shape::threads>(a_.of.dv, thread)
          .store(s_.template key<T>(a_.dv, head_, first_), a_.dv.token, left, shared_.held[1]);
    }
  }

  const AttentionBackwardArgs& a_;
  const BackwardWorkspace& w_;
  Shared& shared_;
  const GradientRows& s_;
  const int &head_, &block_, &first_, &group_, &from_, &blocks_, &end_head_;
  Sums sums_;  // of dk or dq
  MmaSum<T, float> dv_[kKeys ? Shape::chunks : 1][kSums];
};

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    flash_attention_backward_large_kernel(const AttentionBackwardArgs a, const BackwardWorkspace w, int blocks) {
  if constexpr (kMayBeGiven<Shape>) {
    extern __shared__ __align__(128) uint4 memory[];
    // Under a causal mask the first keys and the last queries take longest.
    const int part = static_cast<int>(blockIdx.x) / blocks, number = static_cast<int>(blockIdx.x) % blocks;
    const int block = Shape::keys ? number : blocks - 1 - number;
    LargeBlock<T, Shape>(a, w, part, block, *reinterpret_cast<LargeShared<T, Shape>*>(memory)).run();
  }
}

}  // namespace warpsmith
