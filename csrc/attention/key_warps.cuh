// Attention with the keys of a step shared out to the warps, and for p v the answer's columns: no warp has whole rows. What
// all of them need, the probabilities and by how much earlier sums shrink, passes shared memory once a step. The first way
// to cut attention, and the way for heads that are too long for the registers of one warp.
//
//   q        [bm, d], once
//   ring     stages; each step of bn keys sends d / bk slices of k and bn / bv slices of v through it, without a gap
//            between a step and the next
//   scores   qm x qn warps
//   answer   vm x vn warps, each 32 rows and every vn-th group of 16 columns
//   pair     two blocks of a cluster have half of d each, of q, k, v and the answer; scores are sums of what both have
//
// A row's maximum may be left as it is until it has grown by a factor of 2^slack: sums are then scaled in few of the steps,
// and are exact all the same, because what is subtracted cancels in the end.
#pragma once

#include "attention/score_rows.cuh"
#include "attention/token_tile.cuh"
#include "device/cluster.h"
#include "device/pipeline.h"

namespace warpsmith {

// A rung's Tile: d (of a block), bm, bn, bk, bv, stages, warps, qm, slack, pair, and how lines lie in shared memory, Layout.
template <class Tile>
struct KeyWarps {
  static constexpr int warps = Tile::warps, threads = 32 * warps;
  static constexpr int d = Tile::d, bm = Tile::bm, bn = Tile::bn, bk = Tile::bk, bv = Tile::bv, stages = Tile::stages;
  static constexpr int qm = Tile::qm, qn = warps / qm, wm = bm / qm, wn = bn / qn;  // of scores
  static constexpr int vm = bm / 32, vn = warps / vm, groups = d / 16 / vn;         // of the answer
  static constexpr float slack = Tile::slack;
  static constexpr bool pair = Tile::pair;
  static constexpr int parts = pair ? 2 : 1;
  static_assert(bm % 32 == 0 && wm % 16 == 0 && wn % 16 == 0 && d % (16 * vn) == 0 && bn % bv == 0 && d % bk == 0);
  static_assert(bk % 64 == 0 && bv % 16 == 0 && (vn & (vn - 1)) == 0, "groups of columns lie alike in their blocks");

  using Q = TokenTile<Along::k, bm, d, Tile::template Layout>;
  using K = TokenTile<Along::k, bn, bk, Tile::template Layout>;
  using V = TokenTile<Along::mn, bv, d, Tile::template Layout>;
  using P = TokenTile<Along::k, bm, bn, Tile::template Layout>;
  static constexpr int slot = K::size > V::size ? K::size : V::size;
  static constexpr int slices_k = d / bk, slices_v = bn / bv;

  template <class T>
  struct Shared {
    alignas(128) T q[Q::size];  // and the answer on its way out
    alignas(128) T ring[stages * slot];
    alignas(128) T p[P::size];
    float most[bm][qn];  // of a row, by the warps that share it; in the end the shares of its sum
    float shrink[bm];
    float inverse[bm];
    float partial[pair ? bm * bn / threads : 1][threads];  // the other block's share of a thread's scores
  };
  static constexpr int bytes = static_cast<int>(sizeof(Shared<uint16_t>));
};

// The slices of k and v one after another through the ring, `stages` - 1 ahead of whoever reads them.
template <class T, class C>
class SliceRing {
 public:
  __device__ __forceinline__ SliceRing(const AttentionArgs& a, const QueryTile& tile, T* ring, int key)
      : copy_k_(tile.keys_of<T>(a.k) + tile.part * C::d, a.k.token, a.d - tile.part * C::d),
        copy_v_(tile.keys_of<T>(a.v) + tile.part * C::d, a.v.token, a.dv - tile.part * C::d),
        ring_(ring),
        key_(key),
        keys_(tile.keys),
        end_(tile.key_end) {}

  __device__ __forceinline__ void start() {
    if (key_ < end_) {
      T* to = ring_ + ahead_.slot * C::slot;
      if (slice_ < C::slices_k) {
        copy_k_.start(to, key_, keys_ - key_, slice_ * C::bk);
      } else {
        const int token = key_ + (slice_ - C::slices_k) * C::bv;
        copy_v_.start(to, token, keys_ - token);
      }
    }
    ptx::cp_async_commit();
    ahead_.advance();
    if (++slice_ == C::slices_k + C::slices_v) {
      slice_ = 0;
      key_ += C::bn;
    }
  }

  // The next slice, once all of it is here. One barrier says so, and that the slice before has been read, whose slot the
  // copies of a slice ahead then fill.
  __device__ __forceinline__ const T* next() {
    if constexpr (C::stages == 1) {
      __syncthreads();
      start();
      ptx::cp_async_wait<0>();
      __syncthreads();
    } else {
      ptx::cp_async_wait<C::stages - 2>();
      __syncthreads();
      start();
    }
    const T* slice = ring_ + at_.slot * C::slot;
    at_.advance();
    return slice;
  }

 private:
  const TokenCopy<T, typename C::K, C::threads> copy_k_;
  const TokenCopy<T, typename C::V, C::threads> copy_v_;
  T* ring_;
  RingSlot<C::stages> at_, ahead_;
  int slice_ = 0, key_, keys_, end_;
};

template <class T, class Scores, class Values, class C>
class KeyWarp {
  using Shared = typename C::template Shared<T>;
  static constexpr int kFragments = C::wm / 16, kRows = 2 * kFragments;  // of scores; a lane's rows of them
  // Sums in f16 have no room for probabilities beyond 1.
  static constexpr float kSlack = sizeof(Values) == 2 ? 0.0f : C::slack;

 public:
  __device__ __forceinline__ KeyWarp(const AttentionArgs& a, const QueryTile& tile, Shared& shared)
      : a_(a),
        tile_(tile),
        shared_(shared),
        m_(warp() % C::qm * C::wm),
        n_(warp() / C::qm * C::wn),
        read_q_(m_),
        read_k_(n_),
        read_p_(warp() % C::vm * 32),
        read_v_(warp() / C::vm * 16) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) most_[r] = -INFINITY;
  }

  __device__ __forceinline__ void step(SliceRing<T, C>& ring, int key) {
    // q k
    MmaSum<T, Scores> sums[kFragments][C::wn / 8];
#pragma unroll 1
    for (int slice = 0; slice < C::slices_k; ++slice) {
      const T* tile_k = ring.next();
      const T* tile_q = shared_.q + slice * (C::bk / C::Q::width) * C::Q::Block::size;
      add_scores(sums, tile_q, tile_k);
    }
    if constexpr (C::pair) add_partial(sums);
    softmax(sums, key);

    // p v
#pragma unroll 1
    for (int slice = 0; slice < C::slices_v; ++slice) {
      const T* tile_v = ring.next();  // and of the first, all probabilities are there
      if (slice == 0) shrink_sums();
      const T* tile_p = shared_.p;
#pragma unroll
      for (int k = 0; k < C::bv; k += 16) {
        uint32_t p[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) read_p_at(p[i], tile_p, 16 * i, slice * C::bv + k);
#pragma unroll
        for (int j = 0; j < C::groups; ++j) {
          uint32_t b[4];
          read_v_.read(b, tile_v, 16 * C::vn * j, k);
#pragma unroll
          for (int i = 0; i < 2; ++i) add_two(out_[i] + 2 * j, p[i], b);
        }
      }
    }
  }

  __device__ __forceinline__ void finish() {
    const LaneRows lane;
    // sums of rows
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = quad_sum(sum_[r]);
      if (lane.col == 0) shared_.most[row_of(r)][n_ / C::wn] = sum;
    }
    __syncthreads();
    if (warp() / C::qm == 0 && lane.col == 0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < C::qn; ++i) sum += shared_.most[row_of(r)][i];
        const bool empty = sum == 0.0f;
        shared_.inverse[row_of(r)] = empty ? 0.0f : 1.0f / sum;
        const int query = tile_.first + row_of(r);
        if (a_.lse != nullptr && query < tile_.queries && tile_.part == 0) {
          tile_.lse(a_)[query] = empty ? -INFINITY : (most_[r] + log2f(sum)) * kLn2;
        }
      }
    }
    __syncthreads();

    // the answer, by way of where q was
    const int row0 = warp() % C::vm * 32, column0 = warp() / C::vm * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + 16 * i + 8 * half + lane.row;
        const float inverse = shared_.inverse[row];
#pragma unroll
        for (int j = 0; j < 2 * C::groups; ++j) {
          const float2 pair = out_[i][j].pair(half);
          const int column = column0 + j / 2 * 16 * C::vn + j % 2 * 8 + lane.col;
          *reinterpret_cast<uint32_t*>(shared_.q + C::Q::at(row, column)) =
              pack_pair<T>(pair.x * inverse, pair.y * inverse);
        }
      }
    }
    __syncthreads();
    T* out = tile_.queries_of<T>(a_.out) + tile_.part * C::d;
    const int columns = a_.dv - tile_.part * C::d;
    constexpr int kChunks = C::d / 8;
    for (int i = static_cast<int>(threadIdx.x); i < C::bm * kChunks; i += C::threads) {
      const int row = i / kChunks, column = i % kChunks * 8, query = tile_.first + row;
      if (query >= tile_.queries || column >= columns) continue;
      *reinterpret_cast<uint4*>(out + query * a_.out.token + column) =
          *reinterpret_cast<const uint4*>(shared_.q + C::Q::at(row, column));
    }
  }

 private:
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ __forceinline__ int row_of(int r) const { return m_ + r / 2 * 16 + r % 2 * 8 + LaneRows().row; }

  // A slice of k, whose next fragments are read while those at hand are multiplied.
  __device__ __forceinline__ void add_scores(MmaSum<T, Scores> (&sums)[kFragments][C::wn / 8], const T* tile_q,
                                             const T* tile_k) {
    uint32_t q[2][kFragments][4], k[2][C::wn / 16][4];
    const auto read = [&](int to, int at) {
#pragma unroll
      for (int i = 0; i < kFragments; ++i) read_q_.read(q[to][i], tile_q, 16 * i, at);
#pragma unroll
      for (int j = 0; j < C::wn / 16; ++j) read_k_.read(k[to][j], tile_k, 16 * j, at);
    };
    read(0, 0);
#pragma unroll
    for (int step = 0; step < C::bk / 16; ++step) {
      if (step + 1 < C::bk / 16) read((step + 1) % 2, 16 * (step + 1));
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
#pragma unroll
        for (int j = 0; j < C::wn / 16; ++j) add_two(sums[i] + 2 * j, q[step % 2][i], k[step % 2][j]);
      }
    }
  }

  // Sends its share of the scores to the other block, and adds that one's: the same two numbers in both, so the same sums.
  // Between steps a barrier is under way, which says that what was sent last has been read.
  __device__ __forceinline__ void add_partial(MmaSum<T, Scores> (&sums)[kFragments][C::wn / 8]) {
    static_assert(!C::pair || sizeof(Scores) == sizeof(float), "sums in f32");
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
    const auto each = [&](auto&& visit) {
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
#pragma unroll
        for (int j = 0; j < C::wn / 8; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            visit(shared_.partial[(i * (C::wn / 8) + j) * 4 + c][threadIdx.x], sums[i][j].value[c]);
          }
        }
      }
    };
    cluster_wait();
    each([&](float& partial, float sum) { store_remote(&partial, 1 - tile_.part, sum); });
    cluster_arrive();
    cluster_wait();
    each([&](float& partial, float& sum) { sum += partial; });
    cluster_arrive();
#endif
  }

  // Leaves probabilities and `shrink` in shared memory, for whoever comes past the next barrier.
  __device__ __forceinline__ void softmax(MmaSum<T, Scores> (&sums)[kFragments][C::wn / 8], int key) {
    const LaneRows lane;
    const float scale = a_.scale * kLog2E;
    const bool hides = tile_.hides(a_, C::bm, key, C::bn);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      ScoreRows<C::wn> scores(sums[i]);
      if (hides) {
        scores.hide(a_, tile_, tile_.first + m_ + 16 * i, key + n_);
        keep(sums[i], scores);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float most = quad_max(scores.most(half));
        if (lane.col == 0) shared_.most[row_of(2 * i + half)][n_ / C::wn] = most;
      }
    }
    __syncthreads();  // and all have read the probabilities of the step before
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      ScoreRows<C::wn> scores(sums[i]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = 2 * i + half, row = row_of(r);
        float most = shared_.most[row][0];
#pragma unroll
        for (int w = 1; w < C::qn; ++w) most = fmaxf(most, shared_.most[row][w]);
        most *= scale;
        const float before = most_[r];
        most_[r] = most > before + kSlack ? most : before;
        const float less = subtrahend(most_[r]), shrink = ptx::exp2_approx_ftz(before - less);
        if (n_ == 0 && lane.col == 0) shared_.shrink[row] = shrink;
        sum_[r] = fmaf(sum_[r], shrink, scores.raise(half, scale, less));
      }
      const Probabilities<T, C::wn> p(scores);
#pragma unroll
      for (int j = 0; j < C::wn / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<uint32_t*>(shared_.p + C::P::at(row_of(2 * i + half), n_ + 8 * j + lane.col)) =
              p.a[j / 2][j % 2 * 2 + half];
        }
      }
    }
  }

  // What was hidden from scores, in the sums that they came from, which are read again.
  __device__ __forceinline__ static void keep(MmaSum<T, Scores> (&sums)[C::wn / 8], const ScoreRows<C::wn>& scores) {
#pragma unroll
    for (int j = 0; j < C::wn / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = scores.value[j][2 * half], high = scores.value[j][2 * half + 1];
        if constexpr (sizeof(Scores) == 2) {
          sums[j].value[half] = pack_pair<f16>(low, high);
        } else {
          sums[j].value[2 * half] = low;
          sums[j].value[2 * half + 1] = high;
        }
      }
    }
  }

  __device__ __forceinline__ void shrink_sums() {
    const int row0 = warp() % C::vm * 32 + LaneRows().row;
    float by[2][2];
    bool any = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        by[i][half] = shared_.shrink[row0 + 16 * i + 8 * half];
        any |= by[i][half] != 1.0f;
      }
    }
    if (!__any_sync(kAllLanes, any)) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * C::groups; ++j) multiply(out_[i][j], by[i]);
    }
  }

  // Where the keys lie is not known to the compiler; they are whole fragments on.
  __device__ __forceinline__ void read_p_at(uint32_t (&to)[4], const T* tile_p, int row, int k) const {
    read_p_.read(to, tile_p + k / C::P::width * C::P::Block::size, row, k % C::P::width);
  }

  const AttentionArgs& a_;
  const QueryTile& tile_;
  Shared& shared_;
  const int m_, n_;  // the warp's scores
  const FragmentReader<Side::a, typename C::Q> read_q_;
  const FragmentReader<Side::b, typename C::K> read_k_;
  const FragmentReader<Side::a, typename C::P> read_p_;
  const FragmentReader<Side::b, typename C::V> read_v_;
  MmaSum<T, Values> out_[2][2 * C::groups];
  float most_[kRows], sum_[kRows] = {};
};

template <class T, class Scores, class Values, class C>
__device__ __forceinline__ void attend_together(const AttentionArgs& a, void* memory) {
  auto& shared = *static_cast<typename C::template Shared<T>*>(memory);
  const QueryTile tile(a, C::bm, C::parts);
  if (tile.first >= tile.queries) return;  // so do both of a pair
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  if constexpr (C::pair) cluster_arrive();
#endif
  const int first = tile.key_begin / C::bn * C::bn, column = tile.part * C::d;
  {
    const TokenCopy<T, typename C::Q, C::threads> copy_q(tile.queries_of<const T>(a.q) + column, a.q.token,
                                                         a.d - column);
    copy_q.start(shared.q, tile.first, tile.queries - tile.first);
    ptx::cp_async_commit();
  }
  SliceRing<T, C> ring(a, tile, shared.ring, first);
#pragma unroll
  for (int i = 0; i < C::stages - 1; ++i) ring.start();
  KeyWarp<T, Scores, Values, C> warp(a, tile, shared);
#pragma unroll 1
  for (int key = first; key < tile.key_end; key += C::bn) warp.step(ring, key);
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  if constexpr (C::pair) cluster_wait();
#endif
  ptx::cp_async_wait<0>();
  warp.finish();
}

}  // namespace warpsmith
