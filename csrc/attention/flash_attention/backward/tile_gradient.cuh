// The gradients of keys, values and queries on tensor cores: a block holds some keys and values, and goes through all
// queries that see them.
//   Products are formed with keys as rows, s^T = k q^T and dp^T = v go^T, so that p^T and ds^T leave the tensor cores as
//   their first operands: dv += p^T go, dk += ds^T q. Only ds goes through shared memory, for dq = ds k. Where a warp
//   cannot hold whole rows of dk and dv for 32 keys (d > 64), several share its keys, each with a part of the queries first
//   and a part of the columns then; p goes through shared memory, too.
//   The queries of a step ahead are on their way meanwhile. dq is added up in f32 in global memory, each tile in the order
//   of a block's registers: 16 bytes a lane, whole lines a warp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/compiled_sm.h"
#include "attention/flash_attention/backward/row_chunks.cuh"
#include "attention/flash_attention/backward/rows.cuh"
#include "attention/flash_attention/backward/schedule.h"
#include "attention/flash_attention/backward/score_bits.cuh"
#include "attention/flash_attention/backward/sums.cuh"
#include "attention/flash_attention/backward/turns.cuh"
#include "attention/mask.cuh"
#include "attention/score.cuh"
#include "device/warp.h"
#include "tile/operand_tile.h"
#include "tile/panels.h"
#include "tile/thread_again.cuh"
#include "tile/warp_mma.cuh"

namespace warpsmith {

// What a Tile implies:
//   d, dv     widths of q and k, and of v
//   bm, bn    queries of a step, keys of a block
//   warps_n, warps_d   warps that share the keys, and the columns of each warp's keys
//   at_once   queries whose scores a warp holds, where it has whole rows (warps_d = 1)
//   dq_warps  warps that share the queries of a step where dq is formed; the others share its columns, by turns
//   stages    of queries in shared memory: 2, or 1
//   later     whether dq is formed a step later, with one barrier a step less and room for two tiles of ds
//   blocks    of a multiprocessor, as far as registers go
template <class Tile_>
struct GradientShape : Tile_ {
  using Tile = Tile_;
  static constexpr int warps = Tile::warps_n * Tile::warps_d, threads = 32 * warps;
  static constexpr int keys = Tile::bn / Tile::warps_n, rows = keys / 16;  // of a warp
  static constexpr int queries = Tile::warps_d == 1 ? Tile::at_once : Tile::bm / Tile::warps_d;
  static constexpr int own_d = Tile::d / Tile::warps_d, own_dv = Tile::dv / Tile::warps_d;
  static constexpr int dq_sharers = warps / Tile::dq_warps;  // of the columns
  static constexpr int dq_rows = Tile::bm / Tile::dq_warps, dq_cols = Tile::d / dq_sharers;
  static constexpr bool whole = Tile::warps_d == 1;  // rows of dk and dv
  static_assert(keys % 16 == 0 && queries % 16 == 0 && own_d % 16 == 0 && own_dv % 16 == 0);
  static_assert(dq_rows % 16 == 0 && dq_cols % 16 == 0 && Tile::bm % queries == 0);
  static_assert(!Tile::later || (whole && Tile::stages == 2));
  static_assert(rows * (queries / 8) * 4 <= 32, "a bit of a word for each score");

  using K = OperandTile<Along::k, Tile::bn, Tile::d, Panels>;
  using V = OperandTile<Along::k, Tile::bn, Tile::dv, Panels>;
  using KOfDq = OperandTile<Along::mn, Tile::d, Tile::bn, Panels>;
  using Q = OperandTile<Along::k, Tile::bm, Tile::d, Panels>;
  using Grad = OperandTile<Along::k, Tile::bm, Tile::dv, Panels>;
  using QOfDk = OperandTile<Along::mn, Tile::d, Tile::bm, Panels>;
  using GradOfDv = OperandTile<Along::mn, Tile::dv, Tile::bm, Panels>;
  using Scores = OperandTile<Along::k, Tile::bn, Tile::bm, Panels>;  // p^T and ds^T
  using ScoresOfDq = OperandTile<Along::mn, Tile::bm, Tile::bn, Panels>;
};

template <class T, class Shape>
struct GradientShared {
  alignas(128) T k[Shape::K::size];
  alignas(128) T v[Shape::V::size];
  struct Queries {
    alignas(128) T q[Shape::Q::size];
    alignas(128) T grad[Shape::Grad::size];
    alignas(128) float lse2[Shape::bm];
    alignas(128) float dots[Shape::bm];
  } queries[Shape::stages];
  alignas(128) T ds[Shape::later ? 2 : 1][Shape::Scores::size];
  alignas(128) T p[Shape::whole ? 8 : Shape::Scores::size];
  // What every thread knows alike and seldom asks for lies here, not in registers.
  struct Known {
    GradientRows rows;
    Schedule::Place place;
    int steps;
    QueryBlocks blocks;
  } known;
  float slopes[Shape::threads];  // of each thread, the gradient of the head's slope
};

// Two sums as a word of an operand.
template <class T>
__device__ __forceinline__ uint32_t operand_word(float low, float high) {
  Vec<T, 2> pair;
  from_float(pair, {low, high});
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// sums[rows][cols / 8] += a b, with a [16 rows, k] and b [k, cols] from shared memory, of which `sharers` take 16 columns
// each by turns.
template <int rows, int cols, int depth, int sharers = 1, class T, class ReadA, class ReadB, class Sums>
__device__ __forceinline__ void multiply(Sums& sums, const ReadA& read_a, const T* tile_a, const ReadB& read_b,
                                         const T* tile_b, int b_from = 0) {
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    uint32_t a[rows][4];
#pragma unroll
    for (int i = 0; i < rows; ++i) read_a.read(a[i], tile_a, 16 * i, k);
#pragma unroll
    for (int j = 0; j < cols / 16; ++j) {
      uint32_t b[4];
      read_b.read(b, tile_b, b_from + 16 * sharers * j, k);
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        sums[i][2 * j].add(a[i], {b[0], b[1]});
        sums[i][2 * j + 1].add(a[i], {b[2], b[3]});
      }
    }
  }
}

// The same with a from registers, whose queries start at k_from of b.
template <int rows, int cols, int depth, class T, class ReadB, class Sums>
__device__ __forceinline__ void multiply(Sums& sums, const uint32_t (&a)[depth / 16][rows][4], const ReadB& read_b,
                                         const T* tile_b, int k_from) {
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
#pragma unroll
    for (int j = 0; j < cols / 16; ++j) {
      uint32_t b[4];
      read_b.read(b, tile_b, 16 * j, k_from + 16 * k);
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        sums[i][2 * j].add(a[k][i], {b[0], b[1]});
        sums[i][2 * j + 1].add(a[k][i], {b[2], b[3]});
      }
    }
  }
}

// Whether a GPU that runs the code being compiled may be given the tile. Code for 8.6 runs on 8.7 too.
template <class Tile>
inline constexpr bool kMayBeGiven = Tile::is_for(kCompiledSm) || (kCompiledSm == 86 && Tile::is_for(87));

template <class T, class Shape, bool options>
class GradientBlock {
  using Shared = GradientShared<T, Shape>;
  static constexpr int kRows = Shape::rows, kQueries = Shape::queries, kTiles = kQueries / 8;
  using Scores = MmaSum<T, float>[kRows][kTiles];
  using Bits = ScoreBits<kRows, kTiles>;

 public:
  __device__ __forceinline__ GradientBlock(const AttentionBackwardArgs& a, const BackwardWorkspace& w,
                                           const Schedule& schedule, const Schedule::Place& place, Shared& shared)
      : a_(a),
        w_(w),
        shared_(shared),
        sequence_(shared.known.rows),
        place_(shared.known.place),
        key_block_(shared.known.place.block),
        steps_(shared.known.steps),
        blocks_(shared.known.blocks) {
    if constexpr (options) shared.slopes[threadIdx.x] = 0.0f;
    if (threadIdx.x == 0) {
      auto& known = shared.known;
      known.rows = GradientRows(a, place.batch);
      known.place = place;
      known.blocks = queries_of<Shape::bm, Shape::bn>(a.of, known.rows, place.block);
      known.steps = known.blocks.count * schedule.heads;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void run(const Schedule& schedule) {
    const int first_key = key_block_ * Shape::bn, keys_left = sequence_.n - first_key;
    const int first_head = place_.kv_head * (a_.of.q_heads / a_.of.kv_heads) + place_.split * schedule.heads;
    if (keys_left <= 0) return;
    if (options && a_.dslopes != nullptr && steps_ == 0) {
      for (int head = 0; head < schedule.heads; ++head) leave_slope_sum(first_head + head);
    }

    // keys, values, and the queries of the first step
    of_keys().start(shared_.k, sequence_.template key<const T>(a_.of.k, place_.kv_head, first_key), a_.of.k.token,
                    keys_left);
    of_values().start(shared_.v, sequence_.template key<const T>(a_.of.v, place_.kv_head, first_key), a_.of.v.token,
                      keys_left);
    Step now{first_head, blocks_.first};
    if (steps_ > 0) start(0, now);
    ptx::cp_async_commit();

    // go through the queries
    for (int step = 0; step < steps_; ++step) {
      const int slot = Shape::stages == 2 ? step & 1 : 0;
      ptx::cp_async_wait<0>();
      if (Shape::later && step > 0) await_turn(before(now));
      __syncthreads();  // this step's queries are here; the other stage, and ds of two steps ago, are free
      if (Shape::later && step > 1) pass_turn(before(before(now)));
      if (Shape::stages == 2 && step + 1 < steps_) {
        start(slot ^ 1, after(now));
        ptx::cp_async_commit();
      }
      if (Shape::later && step > 0) add_dq(before(now), shared_.ds[slot ^ 1]);
      if (options && a_.dslopes != nullptr && step > 0 && before(now).head != now.head) {
        leave_slope_sum(now.head - 1);
      }
      scores(now, shared_.queries[slot], shared_.ds[Shape::later ? slot : 0]);
      if constexpr (!Shape::later) {
        await_turn(now);
        __syncthreads();  // p and ds are complete
        if constexpr (!Shape::whole) add_dk_dv(shared_.queries[slot]);
        if constexpr (Shape::stages == 1) {
          __syncthreads();  // the queries have been read
          if (step + 1 < steps_) {
            start(0, after(now));
            ptx::cp_async_commit();
          }
        }
        if (step > 0) pass_turn(before(now));
        add_dq(now, shared_.ds[0]);
      }
      now = after(now);
    }
    const Step last = before(now);
    if (steps_ > 0) {
      if constexpr (Shape::later) {
        await_turn(last);
        __syncthreads();
        if (steps_ > 1) pass_turn(before(last));
        add_dq(last, shared_.ds[(steps_ - 1) & 1]);
      }
      if (options && a_.dslopes != nullptr) leave_slope_sum(last.head);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();  // all of dq is under way, and keys and values have been read
    if (steps_ > 0) pass_turn(last);

    finish(schedule);
  }

 private:
  struct Step {
    int head, block;  // of queries
  };

  // From the first queries to the last, head after head.
  __device__ __forceinline__ Step after(const Step& step) const {
    if (step.block < blocks_.first + blocks_.count - 1) return {step.head, step.block + 1};
    return {step.head + 1, blocks_.first};
  }
  __device__ __forceinline__ Step before(const Step& step) const {
    if (step.block > blocks_.first) return {step.head, step.block - 1};
    return {step.head - 1, blocks_.first + blocks_.count - 1};
  }

  // The first of a warp's keys, and which of those that share them it is.
  __device__ __forceinline__ static int warp_key(int thread) { return thread / kWarp % Shape::warps_n * Shape::keys; }
  __device__ __forceinline__ static int part(int thread) { return thread / kWarp / Shape::warps_n; }

  // Rows of the workspace.
  __device__ __forceinline__ int64_t row(const Step& step) const {
    return step.head * a_.q_rows + sequence_.q_row + int64_t{step.block} * Shape::bm;
  }

  __device__ __forceinline__ RowChunks<typename Shape::K, Shape::threads> of_keys() const {
    return RowChunks<typename Shape::K, Shape::threads>(a_.of.d);
  }
  __device__ __forceinline__ RowChunks<typename Shape::V, Shape::threads> of_values() const {
    return RowChunks<typename Shape::V, Shape::threads>(a_.of.dv);
  }

  __device__ __forceinline__ void start(int slot, const Step& step) {
    auto& to = shared_.queries[slot];
    const int first = step.block * Shape::bm, left = sequence_.m - first;
    const int thread = thread_again();
    const RowChunks<typename Shape::Q, Shape::threads> of_q(a_.of.d, thread);
    const RowChunks<typename Shape::Grad, Shape::threads> of_grad(a_.of.dv, thread);
    of_q.start(to.q, sequence_.template query<const T>(a_.of.q, step.head, first), a_.of.q.token, left);
    of_grad.start(to.grad, sequence_.template query<const T>(a_.grad, step.head, first), a_.grad.token, left);
    constexpr int kChunks = Shape::bm / 4;
    static_assert(2 * kChunks <= Shape::threads);
    if (thread < 2 * kChunks) {
      const int chunk = thread % kChunks * 4;
      const float* from = (thread < kChunks ? w_.lse2 : w_.dots) + row(step) + chunk;
      float* at = (thread < kChunks ? to.lse2 : to.dots) + chunk;
      ptx::cp_async(reinterpret_cast<uint4*>(at), reinterpret_cast<const uint4*>(from));
    }
  }

  // p and ds of a step, and what they add to dk and dv where warps have whole rows.
  __device__ __forceinline__ void scores(const Step& step, const typename Shared::Queries& queries, T* ds) {
    constexpr int kPasses = Shape::whole ? Shape::bm / kQueries : 1;
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
      // Where a second pass follows, it would have to be asked for again; options leave no registers for more.
      constexpr bool kAgain = options || !Shape::whole || Shape::bm == kQueries;
      const int thread = kAgain ? thread_again() : static_cast<int>(threadIdx.x), lane = thread % kWarp;
      const FragmentReader<Side::a, typename Shape::K> read_k(warp_key(thread), thread);
      const FragmentReader<Side::a, typename Shape::V> read_v(warp_key(thread), thread);
      const FragmentReader<Side::b, typename Shape::Q> read_q(0, thread);
      const FragmentReader<Side::b, typename Shape::Grad> read_grad(0, thread);
      const FragmentReader<Side::b, typename Shape::QOfDk> read_q_rows(0, thread);
      const FragmentReader<Side::b, typename Shape::GradOfDv> read_grad_rows(0, thread);
      // Where the lane's first pair lies in a tile of scores: row `key`, columns 2 t and 2 t + 1.
      const float scale2 = a_.of.scale * kLog2e;  // to powers of 2
      const int first_key = key_block_ * Shape::bn, key = warp_key(thread) + lane / 4;
      const int begin = Shape::whole ? 0 : part(thread) * kQueries;
      const int from = begin + pass * kQueries;
      // Where a warp has whole rows of sums, there are no registers to keep it through the products.
      constexpr bool kParks = options && Shape::whole;
      __shared__ Asked parked[kParks ? Shape::threads : 1];
      Asked asked{};
      if constexpr (options) {
        asked = ask(step, step.block * Shape::bm + from + lane % 4 * 2, first_key + key);
      }
      if constexpr (kParks) parked[threadIdx.x] = asked;
      Scores p{}, dp{};
      multiply<kRows, kQueries, Shape::d>(p, read_k, shared_.k, read_q, queries.q, from);
      multiply<kRows, kQueries, Shape::dv>(dp, read_v, shared_.v, read_grad, queries.grad, from);

      // scores to probabilities, and both products to gradients of the scores
      const int query = step.block * Shape::bm + from + lane % 4 * 2;
      const float *lse2 = queries.lse2 + from + lane % 4 * 2, *dots = queries.dots + from + lane % 4 * 2;
      uint32_t p_words[kTiles / 2][kRows][4], ds_words[kTiles / 2][kRows][4];
      if constexpr (options) {
        if constexpr (kParks) asked = parked[thread_again()];
        differentiate(p, dp, asked, step, queries, from);
      } else {
        const bool edge =
            has_edge<Shape::bm, Shape::bn>(a_.of, sequence_, step.block * Shape::bm, key_block_ * Shape::bn);
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
          const float2 own_lse2 = *reinterpret_cast<const float2*>(lse2 + 8 * c);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              float& value = p[i][c].value[e];
              value = ptx::exp2_approx_ftz(fmaf(value, scale2, e % 2 == 0 ? -own_lse2.x : -own_lse2.y));
            }
          }
        }
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
          const float2 own_dots = *reinterpret_cast<const float2*>(dots + 8 * c);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              float& value = dp[i][c].value[e];
              value = p[i][c].value[e] * (value - (e % 2 == 0 ? own_dots.x : own_dots.y));
            }
          }
        }
        if (edge) hide(p, dp, query, first_key + key);
      }
      words(p_words, p);
      words(ds_words, dp);
      put(ds, ds_words, key, from);

      // add to dk and dv
      if constexpr (Shape::whole) {
        multiply<kRows, Shape::dv, kQueries>(dv_, p_words, read_grad_rows, queries.grad, from);
        multiply<kRows, Shape::d, kQueries>(dk_, ds_words, read_q_rows, queries.q, from);
      } else {
        put(shared_.p, p_words, key, from);
      }
    }
  }

  // For every score of a warp's tile: row and column of the mma tile, its place in the lane, its bit in a word.
  template <class Body>
  __device__ __forceinline__ static void each(const Body& body) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) body(i, c, e, (i * kTiles + c) * 4 + e);
      }
    }
  }

  // The same with a query's value, of neighbours at `of` and 8 apart.
  template <class Body>
  __device__ __forceinline__ static void each(const float* of, const Body& body) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
      const float2 own = *reinterpret_cast<const float2*>(of + 8 * c);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) body(i, c, e, e % 2 == 0 ? own.x : own.y);
      }
    }
  }

  // A bit for each score, see ScoreBits.
  struct Asked {
    uint32_t seen, kept;
    bool hides;  // the same for the block: whether some are not seen
    __device__ __forceinline__ bool sees(int i, int c, int e) const { return bit(seen, i, c, e); }
    __device__ __forceinline__ bool keeps(int i, int c, int e) const { return bit(kept, i, c, e); }

   private:
    __device__ __forceinline__ static bool bit(uint32_t of, int i, int c, int e) {
      return (of >> (4 * (i * kTiles + c) + e) & 1u) != 0;
    }
  };

  __device__ __forceinline__ Asked ask(const Step& step, int query, int key) const {
    Asked asked{~0u, ~0u, true};
    const OptionMask mask(a_.of, sequence_, step.head);
    if (mask.beyond_range()) {
      asked.seen = Bits::visible(mask, sequence_, query, key);
    } else if (step.block * Shape::bm + Shape::bm > sequence_.m ||
               has_edge<Shape::bm, Shape::bn>(a_.of, sequence_, step.block * Shape::bm, key_block_ * Shape::bn)) {
      asked.seen = Bits::in_range(a_.of, sequence_, query, key);
    } else {
      asked.hides = false;
    }
    if (a_.of.dropout.active) asked.kept = Bits::kept(a_.of, sequence_, step.head, query, key);
    return asked;
  }

  // Products to what dropout leaves of probabilities, and to gradients of the products, with options. Whatever a call asks
  // for is a loop of its own, around which the whole grid branches alike. `from`: of the step's queries.
  __device__ __forceinline__ void differentiate(Scores& p, Scores& dp, const Asked& asked, const Step& step,
                                                const typename Shared::Queries& queries, int from) {
    const int thread = thread_again(), column = from + thread % 4 * 2, query = step.block * Shape::bm + column;
    const int key = key_block_ * Shape::bn + warp_key(thread) + thread % kWarp / 4,
              past = key - sequence_.place - query;
    const float *lse2 = queries.lse2 + column, *dots = queries.dots + column;
    const auto away = [past](int i, int c, int e) {
      return fabsf(static_cast<float>(past + 16 * i + e / 2 * 8 - 8 * c - e % 2));
    };
    const ScoreOptions& score = a_.of.score;
    const bool drops = a_.of.dropout.active, has_cap = score.softcap > 0.0f;
    const float keep = a_.of.dropout.scale;

    // gradients of probabilities
    if (drops) {
      each([&](int i, int c, int e, int) {
        float& grad = dp[i][c].value[e];
        grad = asked.keeps(i, c, e) ? grad * keep : 0.0f;
      });
    }
    each(dots, [&](int i, int c, int e, float own) { dp[i][c].value[e] -= own; });

    // scores, which `factor` turns into powers of 2
    float unit = a_.of.scale;
    if (has_cap) {
      const float inverse = unit / score.softcap;
      each([&](int i, int c, int e, int) {
        float& x = p[i][c].value[e];
        x = soft_tanh<false>(x * inverse);
      });
      unit = score.softcap;
      if (a_.dslopes != nullptr) add_slope_sum(p, dp, asked, step, query, key, past, lse2);
      each([&](int i, int c, int e, int) {
        const float ratio = p[i][c].value[e];
        dp[i][c].value[e] *= fmaf(-ratio, ratio, 1.0f);
      });
    }
    float factor = unit * kLog2e;
    if (score.slopes != nullptr || score.bias != nullptr) {
      each([&](int i, int c, int e, int) { p[i][c].value[e] *= unit; });
      factor = kLog2e;
    }
    if (score.slopes != nullptr) {
      const float slope = score.slopes[sequence_.batch * score.slopes_batch + step.head];
      each([&](int i, int c, int e, int) {
        float& x = p[i][c].value[e];
        x = fmaf(-slope, away(i, c, e), x);
      });
    }
    if (score.bias != nullptr) {
      const T* bias = static_cast<const T*>(score.bias) + sequence_.batch * score.bias_batch +
                      step.head * score.bias_head + query * score.bias_query + key * score.bias_key;
      each([&](int i, int c, int e, int) {
        if (!asked.sees(i, c, e)) return;
        p[i][c].value[e] += to_float(bias[(8 * c + e % 2) * score.bias_query + (16 * i + e / 2 * 8) * score.bias_key]);
      });
    }

    // probabilities, and the gradients of scores
    each(lse2, [&](int i, int c, int e, float own) {
      float& x = p[i][c].value[e];
      x = ptx::exp2_approx_ftz(fmaf(x, factor, -own));
    });
    each([&](int i, int c, int e, int) { dp[i][c].value[e] *= p[i][c].value[e]; });
    if (asked.hides) {
      each([&](int i, int c, int e, int) {
        if (!asked.sees(i, c, e)) p[i][c].value[e] = dp[i][c].value[e] = 0.0f;
      });
    }
    if (a_.dslopes != nullptr && !has_cap) {
      float slopes = 0.0f;
      each([&](int i, int c, int e, int) { slopes -= away(i, c, e) * dp[i][c].value[e]; });
      shared_.slopes[threadIdx.x] += slopes;
    }
    if (drops) {
      each([&](int i, int c, int e, int) {
        float& weight = p[i][c].value[e];
        weight = asked.keeps(i, c, e) ? weight * keep : 0.0f;
      });
    }
  }

  // What a slope's gradient gets beside a cap, of which it is on the other side than the products: `p` holds scores by the
  // cap, `dp` gradients of probabilities.
  __device__ __forceinline__ void add_slope_sum(const Scores& p, const Scores& dp, const Asked& asked, const Step& step,
                                                int query, int key, int past, const float* lse2) {
    const ScoreOptions& score = a_.of.score;
    const float slope = score.slopes[sequence_.batch * score.slopes_batch + step.head];
    float slopes = 0.0f;
    each(lse2, [&](int i, int c, int e, float own) {
      const bool sees = asked.sees(i, c, e);
      const float away = fabsf(static_cast<float>(past + 16 * i + e / 2 * 8 - 8 * c - e % 2));
      float value = fmaf(-slope, away, p[i][c].value[e] * score.softcap);
      if (sees && score.bias != nullptr) {
        const T* bias = static_cast<const T*>(score.bias) + sequence_.batch * score.bias_batch +
                        step.head * score.bias_head + (query + 8 * c + e % 2) * score.bias_query;
        value += to_float(bias[(key + 16 * i + e / 2 * 8) * score.bias_key]);
      }
      if (sees) slopes -= away * ptx::exp2_approx_ftz(fmaf(value, kLog2e, -own)) * dp[i][c].value[e];
    });
    shared_.slopes[threadIdx.x] += slopes;
  }

  // After they were multiplied: NaN in what is not seen stays out of the gradients of scores.
  __device__ __forceinline__ void hide(Scores& p, Scores& dp, int query, int key) const {
    // past the query's place, of the lane's first key and query
    const int past = key - sequence_.place - query, end = sequence_.n - key;
    each([&](int i, int c, int e, int) {
      const int down = 16 * i + e / 2 * 8, across = 8 * c + e % 2;
      const int own = past + down - across;
      if (down >= end || own > a_.of.right || -own > a_.of.left) p[i][c].value[e] = dp[i][c].value[e] = 0.0f;
    });
  }

  // Scores as operands: queries along k.
  __device__ __forceinline__ static void words(uint32_t (&to)[kTiles / 2][kRows][4], const Scores& from) {
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const float2 pair = from[i][2 * k + part / 2].pair(part % 2);
          to[k][i][part] = operand_word<T>(pair.x, pair.y);
        }
      }
    }
  }

  // The lane's words of operands to a tile of scores: its rows from `key` on, columns from `from` on.
  __device__ __forceinline__ static void put(T* tile, const uint32_t (&words)[kTiles / 2][kRows][4], int key,
                                             int from) {
    using Tile = typename Shape::Scores;
    const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
      const int at = Tile::at(key, from + 8 * c) + pair;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<uint32_t*>(tile + Tile::moved(at, 16 * i + 8 * half, 0)) =
              words[c / 2][i][c % 2 * 2 + half];
        }
      }
    }
  }

  // dk and dv of a warp's keys and columns, from p and ds in shared memory.
  __device__ __forceinline__ void add_dk_dv(const typename Shared::Queries& queries) {
    const int thread = thread_again();
    const FragmentReader<Side::a, typename Shape::Scores> read_scores(warp_key(thread), thread);
    const FragmentReader<Side::b, typename Shape::QOfDk> read_q(16 * part(thread), thread);
    const FragmentReader<Side::b, typename Shape::GradOfDv> read_grad(16 * part(thread), thread);
    multiply<kRows, Shape::own_dv, Shape::bm, Shape::warps_d>(dv_, read_scores, shared_.p, read_grad, queries.grad);
    multiply<kRows, Shape::own_d, Shape::bm, Shape::warps_d>(dk_, read_scores, shared_.ds[0], read_q, queries.q);
  }

  // What the block's keys add to dq of a step.
  __device__ __forceinline__ void add_dq(const Step& step, const T* ds) {
    const int thread = thread_again(), warp = thread / kWarp;
    const FragmentReader<Side::a, typename Shape::ScoresOfDq> read_ds(warp % Shape::dq_warps * Shape::dq_rows, thread);
    const FragmentReader<Side::b, typename Shape::KOfDq> read_k(warp / Shape::dq_warps * 16, thread);
    MmaSum<T, float> dq[Shape::dq_rows / 16][Shape::dq_cols / 8];
    multiply<Shape::dq_rows / 16, Shape::dq_cols, Shape::bn, Shape::dq_sharers>(dq, read_ds, ds, read_k, shared_.k);
    float* to = w_.dq + row(step) * Shape::d + thread * 4;
#pragma unroll
    for (int i = 0; i < Shape::dq_rows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::dq_cols / 8; ++j) {
        add_in_memory(to + (i * (Shape::dq_cols / 8) + j) * Shape::threads * 4, dq[i][j].value);
      }
    }
  }

  // A block that adds in its turn waits for the one before it, and lets the next one go ahead once all its threads have
  // met at a barrier since they added.
  __device__ __forceinline__ uint32_t* turn(const Step& step) const { return w_.turns + row(step) / 32; }
  __device__ __forceinline__ void await_turn(const Step& step) const {
    if (a_.of.deterministic && threadIdx.x == 0) {
      await(turn(step), turn_of<Shape::bm, Shape::bn>(a_.of, sequence_, step.block, key_block_));
    }
  }
  __device__ __forceinline__ void pass_turn(const Step& step) const {
    if (a_.of.deterministic && threadIdx.x == 0) pass(turn(step));
  }

  // Sums of the slope's gradient over the block, one for each head.
  __device__ __forceinline__ void leave_slope_sum(int head) {
    __shared__ float of_warps[Shape::warps];
    const int thread = thread_again();
    const float sum = warp_reduce(shared_.slopes[thread]);
    if (thread % kWarp == 0) of_warps[thread / kWarp] = sum;
    __syncthreads();
    if (thread == 0) {
      float total = 0.0f;
      for (int i = 0; i < Shape::warps; ++i) total += of_warps[i];
      w_.slope_sums[head * a_.k_rows + sequence_.k_row + key_block_] = total;
    }
    __syncthreads();
    shared_.slopes[thread] = 0.0f;
  }

  // dk and dv to memory, or to the sums over parts of the group.
  __device__ __forceinline__ void finish(const Schedule& schedule) {
    const int first_key = key_block_ * Shape::bn, keys_left = sequence_.n - first_key;
    if (schedule.splits > 1) {
      constexpr int kWidths = Shape::d + Shape::dv;
      const int64_t first = (int64_t{place_.split} * a_.of.kv_heads + place_.kv_head) * a_.k_rows + sequence_.k_row;
      float* to = w_.dk_dv + (first + first_key) * kWidths;
      leave_sums<Shape::threads>(to, dk_);
      leave_sums<Shape::threads>(to + Shape::bn * Shape::d, dv_);
      return;
    }
    const int thread = static_cast<int>(threadIdx.x);
    put_sums<typename Shape::K, Shape::warps_d>(shared_.k, dk_, a_.of.scale, warp_key(thread), 16 * part(thread));
    put_sums<typename Shape::V, Shape::warps_d>(shared_.v, dv_, 1.0f, warp_key(thread), 16 * part(thread));
    __syncthreads();
    of_keys().store(sequence_.template key<T>(a_.dk, place_.kv_head, first_key), a_.dk.token, keys_left, shared_.k);
    of_values().store(sequence_.template key<T>(a_.dv, place_.kv_head, first_key), a_.dv.token, keys_left, shared_.v);
  }

  const AttentionBackwardArgs& a_;
  const BackwardWorkspace& w_;
  Shared& shared_;
  const GradientRows& sequence_;
  const Schedule::Place& place_;
  const int &key_block_, &steps_;
  const QueryBlocks& blocks_;
  MmaSum<T, float> dk_[kRows][Shape::own_d / 8];
  MmaSum<T, float> dv_[kRows][Shape::own_dv / 8];
};

template <class T, class Shape, bool options>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    flash_attention_backward_tile_kernel(const AttentionBackwardArgs a, const BackwardWorkspace w,
                                         const Schedule schedule) {
  if constexpr (kMayBeGiven<Shape>) {
    extern __shared__ __align__(128) uint4 memory[];
    __shared__ uint32_t drawn;
    uint32_t number = blockIdx.x;
    if (a.of.deterministic) {
      if (threadIdx.x == 0) drawn = atomicAdd(w.turns + w.turn_count - 1, 1u);
      __syncthreads();
      number = drawn;
    }
    const Schedule::Place place = schedule.place(a.of.kv_heads, number);
    auto& shared = *reinterpret_cast<GradientShared<T, Shape>*>(memory);
    GradientBlock<T, Shape, options>(a, w, schedule, place, shared).run(schedule);
  }
}

}  // namespace warpsmith
