// The gradient of a bias that has a value for every query and key, on tensor cores.
//   A block has 64 queries and 64 keys of the gradient, and goes through all heads and sequences that share it: the sum
//   stays in registers. Rows are streamed in chunks along d, so that any head dimension takes the same shared memory.
#pragma once

#include <cstdint>

#include "attention/flash_attention/backward/bias_gradient.cuh"
#include "attention/flash_attention/backward/row_chunks.cuh"
#include "tile/operand_tile.h"
#include "tile/panels.h"
#include "tile/warp_mma.cuh"

namespace warpsmith {

struct BiasTile {
  static constexpr int rows = 64, chunk = 64, warps = 4, threads = 32 * warps, stages = 2;
  using Chunk = OperandTile<Along::k, rows, chunk, Panels>;
};

template <class T>
struct BiasShared {
  struct Stage {
    alignas(128) T queries[BiasTile::Chunk::size];
    alignas(128) T keys[BiasTile::Chunk::size];
  } stages[BiasTile::stages];
};

template <class T>
class BiasBlock {
  static constexpr int kTiles = BiasTile::rows / 8;
  using Scores = MmaSum<T, float>[kTiles];

 public:
  __device__ __forceinline__ BiasBlock(const AttentionBackwardArgs& a, const BackwardWorkspace& w,
                                       BiasShared<T>& shared, int query, int key)
      : a_(a), w_(w), shared_(shared), query_(query), key_(key) {}

  // What a head of a sequence adds.
  __device__ __forceinline__ void add(const GradientRows& s, int head) {
    const OptionMask mask(a_.of, s, head);
    const int last = min(query_ + BiasTile::rows, s.m) - 1;
    if (query_ >= s.m || key_ >= s.n || mask.first(query_) >= key_ + BiasTile::rows || mask.end(last) <= key_) return;
    const int of_d = static_cast<int>(ceil_div(a_.of.d, BiasTile::chunk));
    const int turns = of_d + static_cast<int>(ceil_div(a_.of.dv, BiasTile::chunk));
    Scores p{}, dp{};
    __syncthreads();  // the chunks of the head before have been read
    start(s, head, 0, of_d);
    for (int turn = 0; turn < turns; ++turn) {
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (turn + 1 < turns) start(s, head, turn + 1, of_d);
      if (turn < of_d) {
        multiply(p, shared_.stages[turn % 2]);
      } else {
        multiply(dp, shared_.stages[turn % 2]);
      }
    }
    const OptionScore<T> score(a_.of, s, head);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll 1
      for (int e = 0; e < 4; ++e) {
        const int query = own_query(e), key = own_key(j, e);
        if (query >= s.m || key >= s.n || !mask(query, key)) continue;
        const float product = pick(p[j].value, e), grad = pick(dp[j].value, e);
        const float ds = gradient_of(a_, w_, s, score, {head, query, key}, product, grad).of_score;
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[j].value[i] += i == e ? ds : 0.0f;
      }
    }
  }

  // `to`: [m, n] of the gradient.
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = own_query(e), key = own_key(j, e);
        if (query < a_.dbias.m && key < a_.dbias.n) {
          to[int64_t{query} * a_.dbias.n + key] = from_float<T>(sums_[j].value[e]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static float pick(const float (&of)[4], int e) {
    return e < 2 ? (e == 0 ? of[0] : of[1]) : (e == 2 ? of[2] : of[3]);
  }
  __device__ __forceinline__ int own_query(int e) const {
    return query_ + static_cast<int>(threadIdx.x) / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 4 + e / 2 * 8;
  }
  __device__ __forceinline__ int own_key(int j, int e) const {
    return key_ + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
  }

  // Starts copying a chunk of q and k, and behind these of the gradient and v.
  __device__ __forceinline__ void start(const GradientRows& s, int head, int turn, int of_d) const {
    auto& to = shared_.stages[turn % 2];
    const bool first = turn < of_d;
    const int col = (first ? turn : turn - of_d) * BiasTile::chunk;
    const RowChunks<typename BiasTile::Chunk, BiasTile::threads> chunks((first ? a_.of.d : a_.of.dv) - col);
    const HeadRows &queries = first ? a_.of.q : a_.grad, &keys = first ? a_.of.k : a_.of.v;
    const int kv_head = head / (a_.of.q_heads / a_.of.kv_heads);
    chunks.start(to.queries, s.template query<const T>(queries, head, query_) + col, queries.token, s.m - query_);
    chunks.start(to.keys, s.template key<const T>(keys, kv_head, key_) + col, keys.token, s.n - key_);
    ptx::cp_async_commit();
  }

  __device__ __forceinline__ static void multiply(Scores& scores, const typename BiasShared<T>::Stage& stage) {
    const FragmentReader<Side::a, typename BiasTile::Chunk> read_queries(static_cast<int>(threadIdx.x) / kWarp * 16);
    const FragmentReader<Side::b, typename BiasTile::Chunk> read_keys(0);
#pragma unroll
    for (int k = 0; k < BiasTile::chunk; k += 16) {
      uint32_t a[4];
      read_queries.read(a, stage.queries, 0, k);
#pragma unroll
      for (int j = 0; j < kTiles / 2; ++j) {
        uint32_t b[4];
        read_keys.read(b, stage.keys, 16 * j, k);
        scores[2 * j].add(a, {b[0], b[1]});
        scores[2 * j + 1].add(a, {b[2], b[3]});
      }
    }
  }

  const AttentionBackwardArgs& a_;
  const BackwardWorkspace& w_;
  BiasShared<T>& shared_;
  const int query_, key_;
  Scores sums_;
};

template <class T>
__global__ void __launch_bounds__(BiasTile::threads, 1)
    flash_attention_backward_bias_tile_kernel(const AttentionBackwardArgs a, const BackwardWorkspace w, int down,
                                              int across) {
  extern __shared__ __align__(128) uint4 memory[];
  BiasShared<T>& shared = *reinterpret_cast<BiasShared<T>*>(memory);
  const BiasGradient& b = a.dbias;
  const int number = static_cast<int>(blockIdx.x), tile = number % (down * across), part = number / (down * across);
  const int own_head = part % b.heads, own_batch = part / b.heads;
  BiasBlock<T> block(a, w, shared, tile / across * BiasTile::rows, tile % across * BiasTile::rows);
  for (int batch = own_batch; batch < a.of.batch; batch += b.batch) {
    const GradientRows s(a, batch);
    for (int head = own_head; head < a.of.q_heads; head += b.heads) block.add(s, head);
  }
  block.store(static_cast<T*>(b.data) + int64_t{part} * b.m * b.n);
}

// Of a call whose rows are packs of 16 bytes.
template <class T>
void bias_gradient_by_tiles(const AttentionBackwardArgs& a, const BackwardWorkspace& w, cudaStream_t stream) {
  const BiasGradient& b = a.dbias;
  if (b.m != a.of.m || b.n != a.of.n) return bias_gradient<T>(a, w, stream);
  const auto down = static_cast<int>(ceil_div(b.m, BiasTile::rows));
  const auto across = static_cast<int>(ceil_div(b.n, BiasTile::rows));
  const auto grid = static_cast<unsigned>(int64_t{down} * across * b.heads * b.batch);
  if (grid == 0) return;
  warpsmith::launch<&flash_attention_backward_bias_tile_kernel<T>>({grid, BiasTile::threads, sizeof(BiasShared<T>)},
                                                                   stream, a, w, down, across);
}

}  // namespace warpsmith
