// The rung `cluster` of layer norm backward from the output: rows streamed through row/chunks.cuh, each block keeping
// its slice of dw and db in registers.
#pragma once

#include <algorithm>

#include "device/copy_async.h"
#include "device/ptx/barrier.h"
#include "norm/backward_persistent.cuh"
#include "norm/column_sums.cuh"
#include "norm/layer_norm_backward_from_output/row.cuh"
#include "row/chunks.cuh"

namespace warpsmith {

// As PositionalChunkTile | packs of a row whose weight a thread holds in registers | whose bias | whose reciprocal weight, of
// 16-bit values | whose weight and bias, if not held, are read again for every row, the last ones. Others lie in shared
// memory.
template <int threads_, int packs_, int depth_, int lag_, int cluster_, int weights_ = 0, int biases_ = 0,
          int inverses_ = 0, int again_ = 0>
struct ColumnTile : PositionalChunkTile<threads_, packs_, depth_, lag_, cluster_, 0> {
  static constexpr int weights = weights_, biases = biases_, inverses = inverses_, again = again_;
};

// A thread's part of the weight or the bias: that of its first packs in registers, that of the last read again whenever
// it is asked for, the rest in shared memory.
template <class W, int width, class Tile, int held, int again>
struct ColumnSlice {
  using Pack = WeightPack<W, width>;
  using Floats = WeightPack<float, width>;
  static constexpr int kWords = sizeof(Pack) / sizeof(uint4), kShelf = Tile::packs - held - again;
  static constexpr int kBytes = kShelf * Tile::threads * static_cast<int>(sizeof(Pack));  // of shared memory of a block
  static_assert(kShelf >= 0, "every pack is in one place");
  const W* from;  // [cols] or null
  uint4* shelf;   // [pack, word, thread]
  Floats held_packs[held > 0 ? held : 1];
  float absent;

  __device__ __forceinline__ ColumnSlice(const W* parameter, float absent_, char* free,
                                         const ChunkShare<width, Tile>& at)
      : from(parameter), shelf(reinterpret_cast<uint4*>(free) + threadIdx.x), absent(absent_) {
#pragma unroll
    for (int i = 0; i < held + kShelf; ++i) {
      if (!at.inside(i)) continue;
      Pack pack;
      pack.load_from(from, at.col(i), absent);
      if (i < held) {
        pack.to_floats(reinterpret_cast<float (&)[width]>(held_packs[i]));
      } else {
#pragma unroll
        for (int j = 0; j < kWords; ++j) word(i, j) = reinterpret_cast<const uint4*>(&pack)[j];
      }
    }
  }
  __device__ __forceinline__ uint4& word(int i, int j) const {
    return shelf[((i - held) * kWords + j) * Tile::threads];
  }
  // As WeightPack's: what the compiler derived from a pack ahead of the rows, a reciprocal, would take registers, too.
  __device__ __forceinline__ void keep(int i) {
    if (i < held) held_packs[i].keep();
  }
  __device__ __forceinline__ void floats(float (&to)[width], int i, const ChunkShare<width, Tile>& at) const {
    if (i < held) return held_packs[i].to_floats(to);
    Pack pack;
    if (i < held + kShelf) {
#pragma unroll
      for (int j = 0; j < kWords; ++j) reinterpret_cast<uint4*>(&pack)[j] = word(i, j);
    } else {
      pack.load_from(from, at.col(i), absent);
    }
    pack.to_floats(to);
  }
};

template <class T, class W>
struct ChunkedLayerNormBackwardFromOutput : LayerNormBackwardFromOutput<T, W> {
  using Norm = LayerNormBackwardFromOutput<T, W>;
  static constexpr int kWidth = kPack<T>;
  // Where floats fit, xhat and grad * weight take the places of y and grad as they are gathered: nothing is done twice,
  // and no parameter is looked at again.
  static constexpr bool kInPlace = sizeof(T) == sizeof(float);
  static constexpr bool kLean = !kInPlace;
  struct Stats {
    float scaled, product;  // sums over a row or a part of it
    float rstd;             // of the row
  };
  using Total = typename Norm::Factors;

  bool beyond_l2;  // the inputs alone would fill L2

  explicit ChunkedLayerNormBackwardFromOutput(const LayerNormBackwardFromOutputArgs& a)
      : Norm(a), beyond_l2(2 * a.rows * a.cols * size_of(a.dtype) >= kL2Bytes) {}

  template <int count>
  __device__ __forceinline__ Stats combine(const Stats* parts) const {
    const Stats part = parts[threadIdx.x % count];
    float sums[] = {part.scaled, part.product};
    warp_reduce_all<count>(sums);
    return {sums[0], sums[1], part.rstd};
  }
  template <int count>
  __device__ __forceinline__ Total total(const Stats* parts) const {
    const Stats row = combine<count>(parts);
    return this->template factors<kLean>({row.scaled, row.product}, row.rstd);
  }

  template <class Tile>
  struct Work {
    static constexpr int kPacks = Tile::packs, kThreads = Tile::threads;
    using Values = Pack<T>;
    template <int held>
    using Slice = ColumnSlice<W, kWidth, Tile, held, std::min(Tile::again, kPacks - held)>;
    using Weights = Slice<Tile::weights>;
    using Biases = Slice<Tile::biases>;
    static constexpr int kEarlyBytes = 2 * kThreads * static_cast<int>(sizeof(Values)), kFirstBytes = 0;
    static constexpr int kLateBytes = 0, kShelfBytes = Weights::kBytes + Biases::kBytes;
    static constexpr bool kResums = false;
    // Few clusters fit the machine, so each adds up many rows: f32 keeps what rounding loses, where registers are left.
    static constexpr bool kCompensated = kInPlace && kPacks <= 4;
    using Sum = std::conditional_t<kCompensated, CompensatedSum, PlainSum>;

    const ChunkedLayerNormBackwardFromOutput& v;
    ChunkShare<kWidth, Tile> at;
    uint64_t policy;
    const T *y_place, *grad_place;
    T* dx_place;
    Weights weights;
    Biases biases;
    float inverses[Tile::inverses > 0 ? Tile::inverses : 1][kWidth];
    Sum dw[kPacks][kWidth], db[kPacks][kWidth];
    typename Norm::Sums sums;
    float rstd;

    __device__ __forceinline__ Work(const ChunkedLayerNormBackwardFromOutput& op, int rank, char* free)
        : v(op),
          at(op.cols, rank),
          policy(op.beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal()),
          weights(op.weight, 1.0f, free, at),
          biases(op.bias, 0.0f, free + Weights::kBytes, at) {
#pragma unroll
      for (int i = 0; i < Tile::inverses; ++i) {
        float weight[kWidth] = {};
        if (at.inside(i)) weights.floats(weight, i, at);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) inverses[i][j] = v.inverse(weight[j]);
      }
    }
    __device__ __forceinline__ static Values* y_of(char* slot) { return reinterpret_cast<Values*>(slot) + threadIdx.x; }
    __device__ __forceinline__ static Values* grad_of(char* slot) {
      return reinterpret_cast<Values*>(slot) + kThreads + threadIdx.x;
    }
    __device__ __forceinline__ void fetch(int i, char* slot, char*, int64_t row) {
      copy_async_if(at.inside(i), y_of(slot), at.place(v.x_row(row), i, y_place), policy);
      copy_async_if(at.inside(i), grad_of(slot), at.place(v.grad_row(row), i, grad_place), policy);
    }
    __device__ __forceinline__ void fetch_late(int, char*, int64_t) {}
    struct Inputs {
      float y[kWidth], grad[kWidth], weight[kWidth], bias[kWidth];
    };
    __device__ __forceinline__ Inputs inputs(int i, char* slot) const {
      Inputs in;
      to_float(in.y, *y_of(slot));
      to_float(in.grad, *grad_of(slot));
      weights.floats(in.weight, i, at);
      biases.floats(in.bias, i, at);
      return in;
    }
    __device__ __forceinline__ void add(int i, int j, float grad, float xhat) {
      dw[i][j].add(grad, xhat);
      db[i][j].add(grad, 1.0f);
    }
    __device__ __forceinline__ void gather(int i, char* slot, char*, int64_t row) {
      if (i == 0) {
        sums = {};
        rstd = v.rstd[row];
      }
      if constexpr (kInPlace) weights.keep(i);
      if (!at.inside(i)) return;
      const auto [y, grad, weight, bias] = inputs(i, slot);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) v.add(sums, y[j], grad[j], weight[j], bias[j]);
      if constexpr (kInPlace) {
        Values xhat, scaled;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          xhat[j] = v.xhat(y[j], weight[j], bias[j], {});
          scaled[j] = __fmul_rn(grad[j], weight[j]);
          add(i, j, grad[j], xhat[j]);
        }
        *y_of(slot) = xhat;
        *grad_of(slot) = scaled;
      }
    }
    __device__ __forceinline__ Stats stats() const {
      const typename Norm::Partial part = v.template over_lanes<kWarp>(sums, {});
      return {part.scaled, part.product, rstd};
    }
    __device__ __forceinline__ void finish(int i, char* slot, char*, int64_t row, const Total& total) {
      T* const to = at.place(v.dx_row(row), i, dx_place);
      if (!at.inside(i)) return;
      float dx[kWidth];
      if constexpr (kInPlace) {
        const Values xhat = *y_of(slot), scaled = *grad_of(slot);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) dx[j] = v.template dx<kLean>(xhat[j], scaled[j], total);
      } else {
        const auto [y, grad, weight, bias] = inputs(i, slot);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float xhat = i < Tile::inverses ? (y[j] - bias[j]) * inverses[i < Tile::inverses ? i : 0][j]
                                                : v.xhat(y[j], weight[j], bias[j], total);
          dx[j] = v.template dx<kLean>(xhat, __fmul_rn(grad[j], weight[j]), total);
          add(i, j, grad[j], xhat);
        }
      }
      Values out;
      from_float(out, dx);
      store<Cache::streaming>(to, out);
    }
    __device__ __forceinline__ void leave(int64_t cluster) const {
      ptx::allow_next_grid();
      const auto write = [&](const Sum(&sums)[kPacks][kWidth], float* partials) {
        write_column_sums(partials, cluster, v.cols, at, [&](int i, int j) { return sums[i][j].sum; });
      };
      write(dw, v.partial_dw);
      write(db, v.partial_db);
    }
  };
};

}  // namespace warpsmith
