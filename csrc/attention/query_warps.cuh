// Attention with the queries shared out to the warps, 16 each: the loops of `split_q` and the rungs after it. Scores stay
// in the registers that they were summed in, where they become the left operand of the second product.
//
// A rung's Config says what it is:
//   d, bm, bn         the head dimension, 64, 128 or 256; queries of a block, 16 a warp; keys of a step
//   memory, stages    see Memory
//   q_in_registers    q is read from shared memory once, not at every step
//   in_place          p v is added to the scaled sums, not to sums of its own that are then added: half the registers
//   Q, K, V           how they lie in shared memory
#pragma once

#include "attention/score_rows.cuh"
#include "attention/token_tile.cuh"

namespace warpsmith {

// Who shares which memory.
enum class Memory {
  apart,       // q; k in a ring of `stages`; v
  shared_kv,   // q; k and v take turns in a ring of `stages`
  shared_qkv,  // the same ring, which q passes through on its way to registers
};

template <int d_, int bm_, int bn_>
struct QueryWarps {
  static constexpr int d = d_, bm = bm_, bn = bn_, warps = bm / 16, threads = 32 * warps, stages = 1;
  static constexpr Memory memory = Memory::apart;
  static constexpr bool q_in_registers = false, in_place = false;
  using Q = TokenTile<Along::k, bm, d, Padded>;
  using K = TokenTile<Along::k, bn, d, Padded>;
  using V = TokenTile<Along::mn, bn, d, Padded>;
};

// Where the parts of a block's shared memory begin, in values of 16 bits.
template <class C>
struct QueryWarpsMemory {
  static constexpr bool apart = C::memory == Memory::apart, passes = C::memory == Memory::shared_qkv;
  static constexpr int slot = C::K::size > C::V::size ? C::K::size : C::V::size;
  static constexpr int k = passes ? 0 : C::Q::size;
  static constexpr int v = k + C::stages * C::K::size;  // where it has a place of its own
  static constexpr int operands = apart ? v + C::V::size : k + C::stages * slot;
  using Out = TokenTile<Along::k, C::bm, C::d, Padded>;  // the answer on its way out
  static constexpr int size = operands > Out::size && (!passes || operands > C::Q::size)
                                  ? operands
                                  : (Out::size > C::Q::size ? Out::size : C::Q::size);
  static constexpr int bytes = 2 * size;
};

// A warp's 16 queries: their scores, and the sums of v.
template <class T, class Scores, class Values, class C>
struct QueryWarp {
  MmaSum<T, Values> out[C::d / 8];
  uint32_t q[C::q_in_registers ? C::d / 16 : 1][4];
  RunningSoftmax softmax;
  const FragmentReader<Side::a, typename C::Q> read_q;
  const FragmentReader<Side::b, typename C::K> read_k;
  const FragmentReader<Side::b, typename C::V> read_v;

  __device__ __forceinline__ QueryWarp() : read_q(static_cast<int>(threadIdx.x) / kWarp * 16), read_k(0), read_v(0) {}

  __device__ __forceinline__ void keep_q(const T* tile) {
#pragma unroll
    for (int k = 0; k < C::d / 16; ++k) read_q.read(q[k], tile, 0, 16 * k);
  }

  __device__ __forceinline__ ScoreRows<C::bn> scores(const T* tile_q, const T* tile_k) {
    MmaSum<T, Scores> sums[C::bn / 8];
#pragma unroll
    for (int k = 0; k < C::d / 16; ++k) {
      uint32_t a[4], b[4];
      if constexpr (!C::q_in_registers) read_q.read(a, tile_q, 0, 16 * k);
#pragma unroll
      for (int j = 0; j < C::bn / 16; ++j) {
        read_k.read(b, tile_k, 16 * j, 16 * k);
        add_two(sums + 2 * j, C::q_in_registers ? q[k] : a, b);
      }
    }
    return ScoreRows<C::bn>(sums);
  }

  __device__ __forceinline__ void add_values(const Probabilities<T, C::bn>& p, const float (&shrink)[2],
                                             const T* tile_v) {
    MmaSum<T, Values> own[C::in_place ? 1 : C::d / 8];
    if constexpr (C::in_place) {
#pragma unroll
      for (int j = 0; j < C::d / 8; ++j) multiply(out[j], shrink);
    }
    MmaSum<T, Values>* sums = C::in_place ? out : own;
#pragma unroll
    for (int k = 0; k < C::bn / 16; ++k) {
#pragma unroll
      for (int j = 0; j < C::d / 16; ++j) {
        uint32_t b[4];
        read_v.read(b, tile_v, 16 * j, 16 * k);
        add_two(sums + 2 * j, p.a[k], b);
      }
    }
    if constexpr (!C::in_place) {
#pragma unroll
      for (int j = 0; j < C::d / 8; ++j) multiply_add(out[j], shrink, own[j]);
    }
  }
};

// A warp's 16 rows to memory by way of shared memory, 16 bytes a store. `staging`: a tile of the block's rows, which nobody
// reads any more.
template <class Out, class T, class Values, int n>
__device__ __forceinline__ void store_rows(const AttentionArgs& a, const QueryTile& tile, T* staging, int row0,
                                           const MmaSum<T, Values> (&sums)[n], const float (&inverse)[2],
                                           int column0 = 0) {
  const LaneRows lane;
#pragma unroll
  for (int j = 0; j < n; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair = sums[j].pair(half);
      *reinterpret_cast<uint32_t*>(staging + Out::at(row0 + lane.row + 8 * half, 8 * j + lane.col)) =
          pack_pair<T>(pair.x * inverse[half], pair.y * inverse[half]);
    }
  }
  __syncwarp();
  T* out = tile.queries_of<T>(a.out);
  constexpr int kAcross = 8 * n / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < 16 * kAcross; i += kWarp) {
    const int row = row0 + i / kAcross, column = i % kAcross * 8, query = tile.first + row;
    if (query >= tile.queries || column0 + column >= a.dv) continue;
    *reinterpret_cast<uint4*>(out + query * a.out.token + column0 + column) =
        *reinterpret_cast<const uint4*>(staging + Out::at(row, column));
  }
}

// After finish() of `softmax`.
__device__ __forceinline__ void store_lse(const AttentionArgs& a, const QueryTile& tile, int row0,
                                          const RunningSoftmax& softmax) {
  const LaneRows lane;
  if (a.lse == nullptr || lane.col != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = tile.first + row0 + lane.row + 8 * half;
    if (query < tile.queries) tile.lse(a)[query] = softmax.lse(half);
  }
}

template <class T, class Scores, class Values, class C>
__device__ __forceinline__ void attend(const AttentionArgs& a, T* memory) {
  using At = QueryWarpsMemory<C>;
  constexpr int kSlots = C::stages;
  const QueryTile tile(a, C::bm);
  if (tile.first >= tile.queries) return;
  const int row0 = static_cast<int>(threadIdx.x) / kWarp * 16;
  const float scale = a.scale * kLog2E;
  const TokenCopy<T, typename C::K, C::threads> copy_k(tile.keys_of<T>(a.k), a.k.token, a.d);
  const TokenCopy<T, typename C::V, C::threads> copy_v(tile.keys_of<T>(a.v), a.v.token, a.dv);
  T* const ring = memory + At::k;
  const auto k_at = [&](int slot) { return ring + slot * (At::apart ? C::K::size : At::slot); };
  T* const v_at = At::apart ? memory + At::v : ring + (kSlots - 1) * At::slot;
  // Past the last key nothing is copied, but the group counts.
  const auto start_k = [&](int slot, int key) {
    if (key < tile.key_end) copy_k.start(k_at(slot), key, tile.keys - key);
    ptx::cp_async_commit();
  };
  const auto start_v = [&](int key) {
    copy_v.start(v_at, key, tile.keys - key);
    ptx::cp_async_commit();
  };

  QueryWarp<T, Scores, Values, C> warp;
  {
    const TokenCopy<T, typename C::Q, C::threads> copy_q(tile.queries_of<const T>(a.q), a.q.token, a.d);
    copy_q.start(memory, tile.first, tile.queries - tile.first);
    ptx::cp_async_commit();
  }
  if constexpr (C::q_in_registers) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    warp.keep_q(memory);
    if constexpr (At::passes) __syncthreads();  // all have read q, whose place k and v take
  }
  int key = tile.key_begin / C::bn * C::bn, slot = 0;
  if (!At::apart || kSlots > 1) start_k(0, key);

  for (; key < tile.key_end; key += C::bn) {
    // k
    if constexpr (At::apart) {
      if constexpr (kSlots == 1) {
        start_k(0, key);
        start_v(key);
        ptx::cp_async_wait<1>();  // v is under way
      } else {
        start_v(key);
        start_k(slot ^ 1, key + C::bn);
        ptx::cp_async_wait<2>();  // v and the next k are under way
      }
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();  // k is here; of two slots, everybody has read the last v
    if constexpr (!At::apart && kSlots == 2) start_v(key);

    ScoreRows<C::bn> scores = warp.scores(memory, k_at(slot));
    if constexpr (!At::apart && kSlots == 1) {
      __syncthreads();  // everybody has read k, whose place v takes
      start_v(key);
    }

    // softmax
    if (tile.hides(a, C::bm, key, C::bn)) scores.hide(a, tile, tile.first + row0, key);
    float shrink[2];
    warp.softmax.add(shrink, scores, scale);
    const Probabilities<T, C::bn> p(scores);

    // v
    ptx::cp_async_wait<(At::apart && kSlots == 2) ? 1 : 0>();
    __syncthreads();  // v is here, and everybody has read k
    if constexpr (!At::apart && kSlots == 2) start_k(0, key + C::bn);
    warp.add_values(p, shrink, v_at);
    if constexpr (At::apart || kSlots == 1) __syncthreads();  // everybody has read v
    if constexpr (!At::apart && kSlots == 1) start_k(0, key + C::bn);
    if constexpr (At::apart && kSlots == 2) slot ^= 1;
  }

  ptx::cp_async_wait<0>();
  __syncthreads();  // shared memory is free
  float inverse[2];
  warp.softmax.finish(inverse);
  store_lse(a, tile, row0, warp.softmax);
  store_rows<typename At::Out>(a, tile, memory, row0, warp.out, inverse);
}

}  // namespace warpsmith
