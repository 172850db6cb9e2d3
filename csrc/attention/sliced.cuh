// Attention whose operands pass shared memory in slices of the head dimension, so that what a block needs there does not
// grow with it. Queries are shared out to the warps, 16 each, as in query_warps.cuh.
//
// A rung's Config says what it is:
//   bm, bn, bk        queries of a block, keys of a step, values of a slice
//   stages            of the ring that slices pass through
//   whole_v           v stands whole in shared memory, and comes along with the slices of q and k
//   columns           of the answer that a block computes, in registers; 0: all, kept in global memory
//   d                 the head dimension where it is known to the compiler; 0 where it is not
//   Q, K, V           how slices lie in shared memory
#pragma once

#include "attention/query_warps.cuh"
#include "device/pipeline.h"

namespace warpsmith {

template <int d_, int columns_>
struct Sliced {
  static constexpr int d = d_, columns = columns_, bm = 64, bk = 32, warps = 4, threads = 32 * warps;
  static constexpr int bn = d > 128 ? 32 : 64;  // what registers have room for
  static constexpr int stages = 2;
  static constexpr bool whole_v = false;
  using Q = TokenTile<Along::k, bm, bk, Padded>;
  using K = TokenTile<Along::k, bn, bk, Padded>;
  using V = TokenTile<Along::mn, bn, bk, Padded>;
};

template <class C>
struct SlicedMemory {
  static constexpr int both = C::Q::size + C::K::size;
  static constexpr int slot = C::whole_v || both > C::V::size ? both : C::V::size;
  static constexpr int v = C::stages * slot, operands = v + (C::whole_v ? C::V::size : 0);
  static constexpr int staged = C::columns == 0 ? C::bk : C::columns;  // columns of the answer on their way out
  using Out = TokenTile<Along::k, C::bm, staged, Padded>;
  static constexpr int size = operands > Out::size ? operands : Out::size, bytes = 2 * size;
};

// Slices one after another through the ring, `stages` - 1 ahead of whoever reads them: of each step of bn keys first
// those of q and k, then those of v.
template <class T, class C>
class OperandSlices {
  using At = SlicedMemory<C>;

 public:
  const int of_scores, of_values;  // slices of a step

  __device__ __forceinline__ OperandSlices(const AttentionArgs& a, const QueryTile& tile, T* memory, int key,
                                           int column)
      : of_scores(C::d != 0 ? C::d / C::bk : (a.d + C::bk - 1) / C::bk),
        of_values(C::whole_v ? 0 : (C::columns != 0 ? C::columns / C::bk : (a.dv + C::bk - 1) / C::bk)),
        copy_q_(tile.queries_of<const T>(a.q), a.q.token, a.d),
        copy_k_(tile.keys_of<T>(a.k), a.k.token, a.d),
        copy_v_(tile.keys_of<T>(a.v) + column, a.v.token, a.dv - column),
        tile_(tile),
        memory_(memory),
        key_(key) {}

  __device__ __forceinline__ void start() {
    if (key_ < tile_.key_end) {
      T* to = memory_ + ahead_.slot * At::slot;
      if (slice_ < of_scores) {
        copy_q_.start(to, tile_.first, tile_.queries - tile_.first, slice_ * C::bk);
        copy_k_.start(to + C::Q::size, key_, tile_.keys - key_, slice_ * C::bk);
      } else {
        copy_v_.start(to, key_, tile_.keys - key_, (slice_ - of_scores) * C::bk);
      }
    }
    ahead_.advance();
    if (++slice_ == of_scores + of_values) {
      slice_ = 0;
      key_ += C::bn;
    }
  }

  // The next slice, once all of it is here: that of q, behind it that of k; or that of v. `along`: starts what is to come
  // with the slice that is started here.
  template <class Along>
  __device__ __forceinline__ const T* next(Along&& along) {
    if constexpr (C::stages > 1) ptx::cp_async_wait<(C::stages > 1 ? C::stages - 2 : 0)>();
    __syncthreads();  // it is here, and the slice before has been read, whose place another one takes
    start();
    along();
    ptx::cp_async_commit();
    if constexpr (C::stages == 1) {
      ptx::cp_async_wait<0>();
      __syncthreads();
    }
    const T* slice = memory_ + at_.slot * At::slot;
    at_.advance();
    return slice;
  }
  __device__ __forceinline__ const T* next() {
    return next([] {});
  }

  // Part `part` of `of_scores` of the whole v at `key`.
  __device__ __forceinline__ void start_v(int key, int part) const {
    copy_v_.start(memory_ + At::v, key, tile_.keys - key, 0, part, of_scores);
  }

 private:
  const TokenCopy<T, typename C::Q, C::threads> copy_q_;
  const TokenCopy<T, typename C::K, C::threads> copy_k_;
  const TokenCopy<T, typename C::V, C::threads> copy_v_;
  const QueryTile& tile_;
  T* memory_;
  RingSlot<C::stages> at_, ahead_;
  int slice_ = 0, key_;
};

// The answer of a warp.
template <class T, class Acc, class C>
struct AnswerInRegisters {
  static constexpr int kPerSlice = C::bk / 8;
  MmaSum<T, Acc> out[C::columns / 8];

  __device__ __forceinline__ AnswerInRegisters(const AttentionArgs&, int) {}

  // `add(sums, slice)`: adds p v to the sums of a slice's columns.
  template <class Add>
  __device__ __forceinline__ void step(const float (&shrink)[2], bool, Add&& add) {
#pragma unroll
    for (int j = 0; j < C::columns / 8; ++j) multiply(out[j], shrink);
#pragma unroll
    for (int slice = 0; slice < C::columns / C::bk; ++slice) add(out + slice * kPerSlice, slice);
  }

  __device__ __forceinline__ void write(const AttentionArgs& a, const QueryTile& tile, T* staging, int row0,
                                        const float (&inverse)[2]) const {
    const int column = tile.part * C::columns;
    if (column < a.dv) store_rows<typename SlicedMemory<C>::Out>(a, tile, staging, row0, out, inverse, column);
  }
};

// The workspace has the fragments of each warp one behind the other, so that lanes read and write neighbouring words.
template <class T, class Acc, class C>
struct AnswerInMemory {
  static constexpr int kPerSlice = C::bk / 8;
  using Sum = MmaSum<T, Acc>;
  const int slices;
  Sum* mine;

  __device__ __forceinline__ AnswerInMemory(const AttentionArgs& a, int of_values) : slices(of_values) {
    const int64_t block = blockIdx.x + int64_t{gridDim.x} * (blockIdx.y + int64_t{gridDim.y} * blockIdx.z);
    mine = static_cast<Sum*>(a.workspace) + (block * C::warps + threadIdx.x / kWarp) * of_values * kPerSlice * kWarp +
           threadIdx.x % kWarp;
  }

  template <class Add>
  __device__ __forceinline__ void step(const float (&shrink)[2], bool first, Add&& add) {
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) {
      Sum sums[kPerSlice];
      if (!first) read(sums, slice);
#pragma unroll
      for (int j = 0; j < kPerSlice; ++j) multiply(sums[j], shrink);
      add(sums, slice);
#pragma unroll
      for (int j = 0; j < kPerSlice; ++j) mine[(slice * kPerSlice + j) * kWarp] = sums[j];
    }
  }

  __device__ __forceinline__ void write(const AttentionArgs& a, const QueryTile& tile, T* staging, int row0,
                                        const float (&inverse)[2]) const {
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) {
      Sum sums[kPerSlice];
      if (tile.key_begin < tile.key_end) read(sums, slice);
      store_rows<typename SlicedMemory<C>::Out>(a, tile, staging, row0, sums, inverse, slice * C::bk);
      __syncwarp();  // the warp's rows of shared memory have been read
    }
  }

 private:
  __device__ __forceinline__ void read(Sum (&sums)[kPerSlice], int slice) const {
#pragma unroll
    for (int j = 0; j < kPerSlice; ++j) sums[j] = mine[(slice * kPerSlice + j) * kWarp];
  }
};

template <class T, class Scores, class Values, class C>
__device__ __forceinline__ void attend_sliced(const AttentionArgs& a, T* memory, int parts = 1) {
  using At = SlicedMemory<C>;
  constexpr bool kInMemory = C::columns == 0;
  using Answer = std::conditional_t<kInMemory, AnswerInMemory<T, Values, C>, AnswerInRegisters<T, Values, C>>;
  const QueryTile tile(a, C::bm, parts);
  if (tile.first >= tile.queries) return;
  const int row0 = static_cast<int>(threadIdx.x) / kWarp * 16, first = tile.key_begin / C::bn * C::bn;
  const float scale = a.scale * kLog2E;
  const FragmentReader<Side::a, typename C::Q> read_q(row0);
  const FragmentReader<Side::b, typename C::K> read_k(0);
  const FragmentReader<Side::b, typename C::V> read_v(0);
  OperandSlices<T, C> slices(a, tile, memory, first, tile.part * C::columns);
  Answer answer(a, slices.of_values);
  RunningSoftmax softmax;
#pragma unroll
  for (int i = 0; i < C::stages - 1; ++i) {
    slices.start();
    ptx::cp_async_commit();
  }

  for (int key = first; key < tile.key_end; key += C::bn) {
    // q k
    MmaSum<T, Scores> sums[C::bn / 8];
    const auto add_scores = [&](int slice) {
      const T* slice_q = slices.next([&] {
        if constexpr (C::whole_v) slices.start_v(key, slice);
      });
#pragma unroll
      for (int k = 0; k < C::bk; k += 16) {
        uint32_t q[4], b[4];
        read_q.read(q, slice_q, 0, k);
#pragma unroll
        for (int j = 0; j < C::bn / 16; ++j) {
          read_k.read(b, slice_q + C::Q::size, 16 * j, k);
          add_two(sums + 2 * j, q, b);
        }
      }
    };
    if constexpr (C::d != 0) {
#pragma unroll
      for (int slice = 0; slice < C::d / C::bk; ++slice) add_scores(slice);
    } else {
#pragma unroll 1
      for (int slice = 0; slice < slices.of_scores; ++slice) add_scores(slice);
    }

    // softmax
    ScoreRows<C::bn> scores(sums);
    if (tile.hides(a, C::bm, key, C::bn)) scores.hide(a, tile, tile.first + row0, key);
    float shrink[2];
    softmax.add(shrink, scores, scale);
    const Probabilities<T, C::bn> p(scores);

    // p v
    if constexpr (C::whole_v) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // all of v is here
    }
    answer.step(shrink, key == first, [&](MmaSum<T, Values>* out, int slice) {
      const T* slice_v = C::whole_v ? memory + At::v : slices.next();
      const int column = C::whole_v ? slice * C::bk : 0;
#pragma unroll
      for (int k = 0; k < C::bn / 16; ++k) {
#pragma unroll
        for (int j = 0; j < C::bk / 16; ++j) {
          uint32_t b[4];
          read_v.read(b, slice_v, column + 16 * j, 16 * k);
          add_two(out + 2 * j, p.a[k], b);
        }
      }
    });
  }

  ptx::cp_async_wait<0>();
  __syncthreads();  // shared memory is free
  float inverse[2];
  softmax.finish(inverse);
  if (tile.part == 0) store_lse(a, tile, row0, softmax);
  answer.write(a, tile, memory, row0, inverse);
}

}  // namespace warpsmith
