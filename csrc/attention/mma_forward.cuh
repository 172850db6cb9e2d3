// The forward pass on tensor cores, FlashAttention-2's way: a block has some queries of a head and walks the head's keys from
// the last that they see to the first. Scores never leave the registers of the warp that forms them: what mma leaves in its
// accumulators is laid out as the next mma wants its left operand.
//   Dao 2023, https://arxiv.org/abs/2307.08691
//
// Where instructions are saved, which on GPUs whose tensor cores are fast is what counts:
//   - exp(scale x - scale max) is one multiplication and addition before exp2;
//   - what was summed is only rescaled where a row's largest score grows by more than 2^8, by which weights stay within f16,
//     and not at all where no row of the warp does (the row's bits depend on nothing but the row);
//   - tiles that all rows see whole take a copy of the loop's body without a mask;
//   - sums of weights stay with their lanes until the end;
//   - shared memory is addressed by constants from a few swizzled places, global memory by pointers that additions move.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "attention/attention.h"
#include "attention/block_order.h"
#include "attention/forward_tile.h"
#include "attention/mask.cuh"
#include "attention/row_copy.cuh"
#include "attention/score.cuh"
#include "attention/sequence.cuh"
#include "device/convert.h"
#include "device/ptx/copy.h"
#include "device/ptx/math.h"
#include "device/warp.h"
#include "tile/operand_tile.h"
#include "tile/panels.h"
#include "tile/thread_again.cuh"
#include "tile/warp_mma.cuh"

namespace warpsmith {

// What a block has.
struct ForwardBlock {
  int head, tile_row;  // of its first query
  Sequence s;

  __device__ __forceinline__ ForwardBlock(const AttentionArgs& a, const HeadOrder& order, int bm, int block)
      : ForwardBlock(a, order.place(block), bm) {}

 private:
  __device__ __forceinline__ ForwardBlock(const AttentionArgs& a, HeadOrder::Place place, int bm)
      : head(place.pair % a.q_heads), tile_row(place.tile * bm), s(a, place.pair / a.q_heads) {}
};

// A tile, and the functors that scores and masks are made of. `all_options`: sinks, a gate, dropout and the largest score
// as well.
template <class T_, class Tile_, template <class> class Score_, class Mask_, bool all_options_>
struct ForwardConfig {
  using T = T_;
  using Tile = Tile_;
  using Score = Score_<T>;
  using Mask = Mask_;
  static constexpr bool all_options = all_options_;
  static constexpr int threads = Tile::warps * kWarp,
                       own = Tile::bm / Tile::warps / 16;  // mma tiles of rows a warp has
  static_assert(own * Tile::warps * 16 == Tile::bm);

  using Q = Panels<Tile::bm, Tile::d>;
  using K = Panels<Tile::bn, Tile::d>;
  using V = Panels<Tile::bn, Tile::dv>;
  using Out = Panels<Tile::bm, Tile::dv>;
  static_assert(Out::size <= Q::size && int{Out::width} == int{Q::width}, "answers take the place of their queries");

  struct Shared {
    alignas(128) T q[Q::size];
    alignas(128) T k[Tile::stages][K::size];
    alignas(128) T v[Tile::stages][V::size];
    // What few steps or none need takes no registers of the main loop here: the block itself; of the steps that it makes
    // the last one, and those that all rows see in full, from whole to before whole_end.
    alignas(128) ForwardBlock block;
    int first, whole, whole_end;
    uint32_t k_step, v_step;                                             // of copies
    alignas(128) float totals[Tile::totals_in_shared ? threads : 1][4];  // of a thread's rows
  };
  static_assert(sizeof(Shared) == kForwardBytes<Tile>);
};

template <class T>
using PlainScoreOf = PlainScore;

// Two weights as a word of mma's operand.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, f16>) {
    const __half2 both = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(both);
  }
}

struct MaxOf {
  __device__ float operator()(float x, float y) const { return fmaxf(x, y); }
};

// In which order the four quarters of 16 x 16 values come into registers. Of queries and, transposed, of values a register
// for each 8 lines follows one for the 8 before; of keys one for 8 columns. No other order will do: mma wants its operands in
// registers that follow one another.
enum class Quarters { down_first, right_first };

// Reads 16 x 16 values of queries, keys or values.
template <class Layout, Quarters order>
class PanelReader {
 public:
  __device__ __forceinline__ explicit PanelReader(uint32_t thread) {
    const int lane = static_cast<int>(thread % kWarp), middle = lane & 8, high = lane / 16 * 8;
    first_ = order == Quarters::down_first ? Layout::at(lane % 8 + middle, high) : Layout::at(lane % 8 + high, middle);
  }

  template <class T>
  __device__ __forceinline__ void read(uint32_t (&to)[4], const T* tile, int line, int col) const {
    ptx::ldmatrix(to, tile + Layout::moved(first_, line, col));
  }
  template <class T>
  __device__ __forceinline__ void read_transposed(uint32_t (&to)[4], const T* tile, int line, int col) const {
    ptx::ldmatrix_trans(to, tile + Layout::moved(first_, line, col));
  }

 private:
  int first_;  // the lane's line of the quarter that it names, at 0, 0
};

// A warp's rows: scores, what was summed of them, answers. Row r of mma tile i is 16 i + 8 half + lane / 4.
template <class Config>
class ForwardRows {
  using T = typename Config::T;
  using Tile = typename Config::Tile;
  using Score = typename Config::Score;
  using Mask = typename Config::Mask;
  static constexpr int kOwn = Config::own, kScores = Tile::bn / 4;  // of a row, in a lane
  static constexpr float kLeast = -0x1p127f;                        // finite
  static constexpr float kGrowth = 8.0f;  // a power of two, by which a score may exceed what weights are relative to

 public:
  MmaSum<T, float> scores[kOwn][Tile::bn / 8], out[kOwn][Tile::dv / 8];
  float largest[kOwn][2], total[kOwn][2], top[kOwn][2];  // top: the largest of all, where that is wanted

  __device__ __forceinline__ ForwardRows() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[i][half] = top[i][half] = -INFINITY;
        total[i][half] = 0.0f;
      }
    }
  }

  // q: of the warp's rows, in registers where the tile says so.
  template <class ReadQ, class ReadK, class Held>
  __device__ __forceinline__ void form_scores(const ReadQ& read_q, const T* q, const Held& held, const ReadK& read_k,
                                              const T* k) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::bn / 8; ++j) scores[i][j] = {};
    }
#pragma unroll
    for (int step = 0; step < Tile::d / 16; ++step) {
      uint32_t a[kOwn][4];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if constexpr (Tile::q_in_registers) {
#pragma unroll
          for (int word = 0; word < 4; ++word) a[i][word] = held.words[i][step][word];
        } else {
          read_q.read(a[i], q, 16 * i, 16 * step);
        }
      }
#pragma unroll
      for (int j = 0; j < Tile::bn / 16; ++j) {
        uint32_t both[4];
        read_k.read(both, k, 16 * j, 16 * step);
        const uint32_t low[2] = {both[0], both[1]}, high[2] = {both[2], both[3]};
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          scores[i][2 * j].add(a[i], low);
          scores[i][2 * j + 1].add(a[i], high);
        }
      }
    }
  }

  // Scores to weights. `query` and `lane_key`: the lane's first row and key.
  template <bool masked>
  __device__ __forceinline__ void weigh(const Score& score, const Mask& mask, const AttentionArgs& a, const Sequence& s,
                                        int head, int query, int lane_key, float (&totals)[4]) {
    if constexpr (Tile::totals_in_shared) load_totals(totals);
    const float factor = score.factor();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float rescale[2];
      bool grown = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[kScores];
        each(i, half, [&](int c, float& value) { x[c] = value; });
        const int row = query + 16 * i + 8 * half, at = row < s.m ? row : s.m - 1;
        const auto key = [lane_key](int c) { return lane_key + c / 2 * 8 + c % 2; };
        score.row(x, at, key);
        if constexpr (masked) mask.hide(x, at, key);
        each(i, half, [&](int c, float& value) { value = x[c]; });

        float most = x[0];
#pragma unroll
        for (int c = 1; c < kScores; ++c) most = fmaxf(most, x[c]);
        most = warp_reduce<4>(most, MaxOf{});
        if constexpr (Config::all_options) {
          if (a.max_logits != nullptr) {  // NaN stays, which `most` drops
#pragma unroll
            for (int c = 0; c < kScores; ++c) top[i][half] = ptx::max_nan(top[i][half], x[c]);
          }
        }
        const bool grows = (most - largest[i][half]) * factor > kGrowth;  // not where both are -inf
        rescale[half] = grows ? ptx::exp2_approx_ftz((largest[i][half] - most) * factor) : 1.0f;
        largest[i][half] = grows ? most : largest[i][half];
        grown = grown || grows;
      }
      if (__any_sync(kAllLanes, grown)) rescale_by(i, rescale);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Rows that have seen nothing yet have no finite score to be relative to.
        const float relative_to = fmaxf(largest[i][half] * factor, kLeast);
        float sum = total[i][half];
        each(i, half, [&](int, float& value) {
          value = ptx::exp2_approx_ftz(fmaf(value, factor, -relative_to));
          sum += value;
        });
        total[i][half] = sum;
        if constexpr (Config::all_options) {
          if (a.dropout.active) drop(i, half, a, s, head, query + 16 * i + 8 * half, lane_key);
        }
      }
    }
    if constexpr (Tile::totals_in_shared) store_totals(totals);
  }

  // Sums of weights are touched once in a step; meanwhile some tiles leave them in shared memory, a place for each thread.
  __device__ __forceinline__ void load_totals(const float (&from)[4]) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    total[0][0] = x.x, total[0][1] = x.y, total[kOwn - 1][0] = x.z, total[kOwn - 1][1] = x.w;
  }
  __device__ __forceinline__ void store_totals(float (&to)[4]) const {
    static_assert(!Tile::totals_in_shared || kOwn == 2);
    *reinterpret_cast<float4*>(to) = {total[0][0], total[0][1], total[kOwn - 1][0], total[kOwn - 1][1]};
  }

  template <class ReadV>
  __device__ __forceinline__ void add_values(const ReadV& read_v, const T* v) {
#pragma unroll
    for (int step = 0; step < Tile::bn / 16; ++step) {
      uint32_t a[kOwn][4];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const float2 pair = scores[i][2 * step + word / 2].pair(word % 2);
          a[i][word] = pack_pair<T>(pair.x, pair.y);
        }
      }
#pragma unroll
      for (int j = 0; j < Tile::dv / 16; ++j) {
        uint32_t both[4];
        read_v.read_transposed(both, v, 16 * step, 16 * j);
        const uint32_t low[2] = {both[0], both[1]}, high[2] = {both[2], both[3]};
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          out[i][2 * j].add(a[i], low);
          out[i][2 * j + 1].add(a[i], high);
        }
      }
    }
  }

 private:
  // f(c, score) for a lane's scores of a row: c counts 8 (c / 2) + c % 2 keys from the lane's first.
  template <class F>
  __device__ __forceinline__ void each(int i, int half, F f) {
#pragma unroll
    for (int c = 0; c < kScores; ++c) f(c, scores[i][c / 2].value[2 * half + c % 2]);
  }

  __device__ __forceinline__ void rescale_by(int i, const float (&by)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[i][half] *= by[half];
#pragma unroll
      for (int j = 0; j < Tile::dv / 8; ++j) {
        out[i][j].value[2 * half] *= by[half];
        out[i][j].value[2 * half + 1] *= by[half];
      }
    }
  }

  // Weights that dropout takes become 0; those that it keeps are scaled at the end, all alike.
  __device__ __forceinline__ void drop(int i, int half, const AttentionArgs& a, const Sequence& s, int head, int row,
                                       int lane_key) {
    const uint64_t line = ((static_cast<uint64_t>(s.batch) * a.q_heads + head) * a.m + row) * a.n + lane_key;
#pragma unroll
    for (int j = 0; j < Tile::bn / 8; ++j) {
      float* pair = scores[i][j].value + 2 * half;
      const uint64_t element = line + 8 * j;
      if (element % 2 == 0) {  // one call of the generator serves both
        const uint4 words = a.dropout.words(element / 4);
        const bool low = element % 4 == 0;
        if ((low ? words.x : words.z) <= a.dropout.last_dropped) pair[0] = 0.0f;
        if ((low ? words.y : words.w) <= a.dropout.last_dropped) pair[1] = 0.0f;
      } else {
        if (!a.dropout.keeps(element)) pair[0] = 0.0f;
        if (!a.dropout.keeps(element + 1)) pair[1] = 0.0f;
      }
    }
  }
};

// A warp's queries, where the tile keeps them in registers.
template <class Config, bool held = Config::Tile::q_in_registers>
struct HeldQueries {
  template <class Read, class T>
  __device__ __forceinline__ void load(const Read&, const T*) {}
};

template <class Config>
struct HeldQueries<Config, true> {
  uint32_t words[Config::own][Config::Tile::d / 16][4];

  template <class Read, class T>
  __device__ __forceinline__ void load(const Read& read, const T* q) {
#pragma unroll
    for (int i = 0; i < Config::own; ++i) {
#pragma unroll
      for (int step = 0; step < Config::Tile::d / 16; ++step) read.read(words[i][step], q, 16 * i, 16 * step);
    }
  }
};

// The first row of a lane in the block's tile.
template <class Config>
__device__ __forceinline__ int lane_line(uint32_t thread) {
  return static_cast<int>(thread / kWarp * (16 * Config::own) + thread % kWarp / 4);
}

// Answers through shared memory, so that they leave in rows of 16-byte packs. `shared`: where the queries were.
template <class Config>
__device__ __forceinline__ void store_rows(ForwardRows<Config>& rows, const AttentionArgs& a, const ForwardBlock& block,
                                           typename Config::T* shared) {
  using T = typename Config::T;
  using Tile = typename Config::Tile;
  using Out = typename Config::Out;
  const Sequence& s = block.s;
  const int head = block.head, tile_row = block.tile_row, thread = thread_again(), lane = thread % kWarp;
  const int warp_row = thread / kWarp * (16 * Config::own);
  const typename Config::Score score(a, s, head);
  __syncwarp();  // all lanes have read the queries
#pragma unroll
  for (int i = 0; i < Config::own; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = warp_row + 16 * i + 8 * half + lane / 4, row = tile_row + line;
      float sum = warp_reduce<4>(rows.total[i][half]), largest = rows.largest[i][half], scale = 1.0f;
      if constexpr (Config::all_options) {
        if (row >= s.m) rows.top[i][half] = -INFINITY;
        if (a.sinks != nullptr) {
          const float sink = a.sinks[head], most = fmaxf(largest, sink);
          if (most > -INFINITY) {
            scale = ptx::exp2_approx_ftz((largest - most) * score.factor());
            sum = sum * scale + ptx::exp2_approx_ftz((sink - most) * score.factor());
            largest = most;
          }
        }
        if (a.dropout.active) scale *= a.dropout.scale;
      }
      scale = sum == 0.0f ? 0.0f : scale / sum;
      if (a.lse != nullptr && lane % 4 == 0 && row < s.m) {
        s.lse(a, head)[row] = sum == 0.0f ? -INFINITY : fmaf(largest, score.natural(), logf(sum));
      }
#pragma unroll
      for (int j = 0; j < Tile::dv / 8; ++j) {
        const float2 pair = rows.out[i][j].pair(half);
        const uint32_t word = pack_pair<T>(pair.x * scale, pair.y * scale);
        *reinterpret_cast<uint32_t*>(shared + Out::at(line, 8 * j + 2 * (lane % 4))) = word;
      }
    }
  }
  __syncwarp();

  constexpr int kPerLine = Tile::dv / kPack<T>, kLines = 16 * Config::own;
  T* out = s.queries<T>(a.out, head);
#pragma unroll
  for (int i = 0; i < kLines * kPerLine / kWarp; ++i) {
    const int chunk = i * kWarp + lane, line = warp_row + chunk / kPerLine, col = chunk % kPerLine * kPack<T>;
    const int row = tile_row + line;
    if (row >= s.m || col >= a.dv) continue;
    Pack<T> pack;
    load(pack, shared + Out::at(line, col));
    if constexpr (Config::all_options) {
      if (a.gate.data != nullptr) {
        Pack<T> gate;
        load(gate, s.queries<const T>(a.gate, head) + row * a.gate.token + col);
        float x[kPack<T>], g[kPack<T>];
        to_float(x, pack);
        to_float(g, gate);
#pragma unroll
        for (int c = 0; c < kPack<T>; ++c) x[c] *= logistic<false>(g[c]);
        from_float(pack, x);
      }
    }
    store(out + row * a.out.token + col, pack);
  }
}

// Walks the keys from the last to the first.
template <class Config>
class ForwardLoop {
  using T = typename Config::T;
  using Tile = typename Config::Tile;
  using Score = typename Config::Score;
  using Mask = typename Config::Mask;
  using Shared = typename Config::Shared;
  static constexpr bool kDouble = Tile::stages == 2;
  static_assert(Tile::stages == 1 || kDouble);

 public:
  using CopyK = RowCopy<T, typename Config::K, Config::threads>;
  using CopyV = RowCopy<T, typename Config::V, Config::threads>;

  // From step `last` on.
  __device__ __forceinline__ ForwardLoop(const AttentionArgs& a, const ForwardBlock& block, Shared& shared, int last)
      : a_(a),
        block_(block),
        shared_(shared),
        left_(block.s.n - last * Tile::bn),
        copy_k_(block.s.keys<T>(a.k, kv_head()), a.k.token, int64_t{last} * Tile::bn),
        copy_v_(block.s.keys<T>(a.v, kv_head()), a.v.token, int64_t{last} * Tile::bn) {}

  // Under way then: queries and the last keys; of two stages, their values too.
  __device__ __forceinline__ void start(int last) {
    using CopyQ = RowCopy<T, typename Config::Q, Config::threads>;
    const uint32_t thread = threadIdx.x;
    CopyQ copy_q(block_.s.template queries<const T>(a_.q, block_.head), a_.q.token, block_.tile_row);
    copy_q.template start<true>(shared_.q, thread, CopyQ::step_bytes(a_.q.token), a_.d, block_.s.m - block_.tile_row);
    copy_k_.template start<true>(shared_.k[slot(last)], thread, shared_.k_step, a_.d, left_);
    if constexpr (kDouble) {
      copy_v_.template start<true>(shared_.v[slot(last)], thread, shared_.v_step, a_.dv, left_);
    }
    ptx::cp_async_commit();
  }

  template <bool masked>
  __device__ __forceinline__ void step(ForwardRows<Config>& rows, int n) {
    // What follows from the thread's index is computed again in each step: it is little, and registers are rare.
    const auto thread = static_cast<uint32_t>(thread_again());
    const PanelReader<typename Config::Q, Quarters::down_first> read_q(thread);
    const T* q = shared_.q + thread / kWarp * (16 * Config::own) * Config::Q::width;  // of the warp
    // Under way: the keys of this step; of two stages, the values too.
    ptx::cp_async_wait<0>();
    __syncthreads();  // they are here for all, and all have left the step before
    if constexpr (Tile::q_in_registers) {
      if (!held_queries_) held_.load(read_q, q);
      held_queries_ = true;
    }
    if constexpr (kDouble) {
      if (n > shared_.first) {
        copy_k_.template start<false>(shared_.k[slot(n - 1)], thread, shared_.k_step, a_.d);
        copy_v_.template start<false>(shared_.v[slot(n - 1)], thread, shared_.v_step, a_.dv);
        ptx::cp_async_commit();
      }
    } else {
      if (left_ < Tile::bn) {
        copy_v_.template start<true>(shared_.v[0], thread, shared_.v_step, a_.dv, left_);
        left_ = Tile::bn;
      } else {
        copy_v_.template start<false>(shared_.v[0], thread, shared_.v_step, a_.dv);
      }
      ptx::cp_async_commit();
    }
    const PanelReader<typename Config::K, Quarters::right_first> read_k(thread);
    rows.form_scores(read_q, q, held_, read_k, shared_.k[slot(n)]);
    if constexpr (!kDouble) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // the values are here for all, and all have left the keys
      if (n > shared_.first) {
        copy_k_.template start<false>(shared_.k[0], thread, shared_.k_step, a_.d);
        ptx::cp_async_commit();
      }
    }
    weigh<masked>(rows, n * Tile::bn);
    const PanelReader<typename Config::V, Quarters::down_first> read_v(static_cast<uint32_t>(thread_again()));
    rows.add_values(read_v, shared_.v[slot(n)]);
  }

 private:
  __device__ __forceinline__ static int slot(int n) { return kDouble ? n & 1 : 0; }
  __device__ __forceinline__ int kv_head() const { return block_.head / (a_.q_heads / a_.kv_heads); }

  template <bool masked>
  __device__ __forceinline__ void weigh(ForwardRows<Config>& rows, int first_key) const {
    const ForwardBlock& block = shared_.block;
    const auto thread = static_cast<uint32_t>(thread_again());
    const int row = block.tile_row + lane_line<Config>(thread);
    const Score score(a_, block.s, block.head);
    const Mask mask(a_, block.s, block.head);
    rows.template weigh<masked>(score, mask, a_, block.s, block.head, row,
                                first_key + static_cast<int>(2 * (thread % 4)),
                                shared_.totals[Tile::totals_in_shared ? thread : 0]);
  }

  const AttentionArgs& a_;
  const ForwardBlock& block_;
  Shared& shared_;
  int left_;  // keys of the last step that exist, or more; all, once its values are on their way
  bool held_queries_ = false;
  CopyK copy_k_;
  CopyV copy_v_;
  HeldQueries<Config> held_;
};

// The block's part of attention. `memory`: Config::Shared.
template <class Config>
__device__ __forceinline__ void attend(const AttentionArgs& a, const HeadOrder& order, void* memory) {
  using Tile = typename Config::Tile;
  auto& shared = *static_cast<typename Config::Shared*>(memory);
  const ForwardBlock block(a, order, Tile::bm, static_cast<int>(blockIdx.x));
  if (block.tile_row >= block.s.m) return;

  // Steps from end - 1 down to first, of which all rows see those from `whole` to before `whole_end` in full.
  const typename Config::Mask mask(a, block.s, block.head);
  const int last_row = min(block.tile_row + Tile::bm, block.s.m) - 1;
  const int end = max(0, mask.end(last_row) + Tile::bn - 1) / Tile::bn, first = mask.first(block.tile_row) / Tile::bn;
  const int whole_end = max(0, mask.end(block.tile_row)) / Tile::bn;
  const int whole = (mask.first(last_row) + Tile::bn - 1) / Tile::bn;

  if (threadIdx.x == 0) {
    shared.block = block;
    shared.first = first;
    shared.whole = whole;
    shared.whole_end = whole_end;
    shared.k_step = ForwardLoop<Config>::CopyK::step_bytes(a.k.token);
    shared.v_step = ForwardLoop<Config>::CopyV::step_bytes(a.v.token);
  }
  __syncthreads();

  ForwardRows<Config> rows;
  auto& totals = shared.totals[Tile::totals_in_shared ? threadIdx.x : 0];
  if constexpr (Tile::totals_in_shared) rows.store_totals(totals);
  if (first < end) {
    ForwardLoop<Config> loop(a, block, shared, end - 1);
    loop.start(end - 1);
    for (int n = end - 1; n >= shared.first; --n) {
      if (Config::all_options || n >= shared.whole_end || n < shared.whole) {
        loop.template step<true>(rows, n);
      } else {
        loop.template step<false>(rows, n);
      }
    }
  }

  if constexpr (Tile::totals_in_shared) rows.load_totals(totals);
  store_rows(rows, a, shared.block, shared.q);
  if constexpr (Config::all_options) {
    if (a.max_logits == nullptr) return;
    const auto largest = [](float x, float y) { return ptx::max_nan(x, y); };
    float most = rows.top[0][0];
#pragma unroll
    for (int i = 1; i < 2 * Config::own; ++i) most = largest(most, rows.top[i / 2][i % 2]);
    most = warp_reduce(most, largest);
    if (threadIdx.x % kWarp == 0) atomic_max(a.max_logits + shared.block.head, most);
  }
}

}  // namespace warpsmith
