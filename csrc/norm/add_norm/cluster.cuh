// The rungs `cluster` of the residual norms: rows streamed through row/chunks.cuh. h, once added, takes the place of
// residual in the ring.
#pragma once

#include "device/copy_async.h"
#include "device/moments.h"
#include "norm/add_norm/row.cuh"
#include "row/chunks.cuh"

namespace warpsmith {

template <class Rows>
struct ChunkedAddNorm : Rows {
  using Rows::kLayer;
  using typename Rows::R;
  using typename Rows::T;
  using typename Rows::W;
  using typename Rows::Y;
  static constexpr int kWidth = Rows::kWidth;
  struct Square {
    float sum;
  };
  using Stats = std::conditional_t<kLayer, Moments, Square>;
  using Total = RowStatistics;

  explicit ChunkedAddNorm(const Rows& rows) : Rows(rows) {}

  template <int count>
  __device__ __forceinline__ Stats combine(const Stats* parts) const {
    const Stats part = parts[threadIdx.x % count];
    if constexpr (kLayer) {
      return warp_merge_around<count>(part);
    } else {
      return {warp_reduce<count>(part.sum)};
    }
  }
  template <int count>
  __device__ __forceinline__ Total total(const Stats* parts) const {
    const Stats s = combine<count>(parts);
    if constexpr (kLayer) {
      const float variance = s.m2 * this->inverse_count;
      return {s.mean, rsqrtf((variance < 0.0f ? 0.0f : variance) + this->eps)};
    } else {
      return {0.0f, reciprocal_rms(s.sum, this->inverse_count, this->eps)};
    }
  }

  template <class Tile>
  struct Work {
    using XPack = Vec<T, kWidth>;
    using HPack = Vec<R, kWidth>;
    using WPack = WeightPack<W, kWidth>;
    static constexpr int kThreads = Tile::shape.threads;
    static constexpr int kEarlyBytes = kThreads * sizeof(HPack), kFirstBytes = kThreads * sizeof(XPack);
    static constexpr int kLateBytes = 0, kShelfBytes = 0;
    static constexpr bool kResums = false;

    const ChunkedAddNorm& v;
    ChunkShare<kWidth, Tile> at;
    uint64_t policy;
    // The thread's first packs of the rows under way.
    const T* x_place;
    const R* residual_place;
    R* h_place;
    Y* y_place;
    WPack weight[Tile::shape.held], bias[kLayer ? Tile::shape.held : 1];
    float shift, deviation, square;  // the sums are around the shift, near the mean of the warp's values
    float count, inverse;            // of the warp's values
    float inverse_heads;             // of its lanes that have any

    __device__ __forceinline__ Work(const ChunkedAddNorm& op, int rank, char*)
        : v(op), at(op.cols, rank), policy(op.load_policy()) {
#pragma unroll
      for (int i = 0; i < Tile::shape.held; ++i) {
        if (!at.inside(i)) continue;
        weight[i].load_from(v.weight, at.col(i));
        if constexpr (kLayer) bias[i].load_from(v.bias, at.col(i), 0.0f);
      }
      count = static_cast<float>(at.values());
      inverse = count > 0.0f ? 1.0f / count : 0.0f;
      inverse_heads = at.lanes(0) > 0 ? 1.0f / static_cast<float>(at.lanes(0)) : 0.0f;
    }
    __device__ __forceinline__ static HPack* h_of(char* slot) { return reinterpret_cast<HPack*>(slot) + threadIdx.x; }
    __device__ __forceinline__ static XPack* x_of(char* slot) { return reinterpret_cast<XPack*>(slot) + threadIdx.x; }
    __device__ __forceinline__ void fetch(int i, char* early, char* first, int64_t row) {
      copy_async_if(at.inside(i), x_of(first), at.place(v.x_row(row), i, x_place), policy);
      if (v.residual == nullptr) return;
      copy_async_if(at.inside(i), h_of(early), at.place(v.residual_row(row), i, residual_place), policy);
    }
    __device__ __forceinline__ void gather(int i, char* early, char* first, int64_t row) {
      R* const to = at.place(v.h_row(row), i, h_place);
      HPack h{};
      if (at.inside(i)) {
        if (v.residual != nullptr) h = *h_of(early);
        h = v.add(*x_of(first), h, row, at.col(i));
        if (v.h != nullptr) store<Cache::streaming>(to, h);
        *h_of(early) = h;
      }
      if (i == 0) {
        shift = deviation = square = 0.0f;
        if constexpr (kLayer) shift = warp_reduce(to_float(h[0]) * inverse_heads);
      }
      if (!at.inside(i)) return;
      float values[kWidth];
      to_float(values, h);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float d = kLayer ? values[j] - shift : values[j];
        square = fmaf(d, d, square);
        if constexpr (kLayer) deviation += d;
      }
    }
    __device__ __forceinline__ Stats stats() const {
      if constexpr (kLayer) {
        const float off = warp_reduce(deviation), distance = off * inverse;
        return {count, shift + distance, fmaf(-distance, off, warp_reduce(square))};
      } else {
        return {warp_reduce(square)};
      }
    }
    __device__ __forceinline__ void finish(int i, char* early, char*, int64_t row, const Total& total) {
      if (i < Tile::shape.held) {
        weight[i].keep();
        if constexpr (kLayer) bias[i].keep();
      }
      Y* const to = at.place(v.y_row(row), i, y_place);
      if (!at.inside(i)) return;
      WPack w, b;
      if (i < Tile::shape.held) {
        w = weight[i];
        if constexpr (kLayer) b = bias[i];
      } else {
        w.load_from(v.weight, at.col(i));
        if constexpr (kLayer) b.load_from(v.bias, at.col(i), 0.0f);
      }
      float values[kWidth], factors[kWidth], offsets[kWidth];
      to_float(values, *h_of(early));
      w.to_floats(factors);
      if constexpr (kLayer) b.to_floats(offsets);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float centred = kLayer ? values[j] - total.mean : values[j], f = factors[j] + v.weight_offset;
        values[j] = kLayer ? fmaf(centred * total.rstd, f, offsets[j]) : centred * total.rstd * f;
      }
      store<Cache::streaming>(to, v.round(values));
    }
    __device__ __forceinline__ void leave(int64_t) const {}
  };
};

// The first that holds the row is taken. Fewer of them serve the rarer dtypes, which hold fewer columns in registers too.
constexpr ChunkTile add_norm_chunks(int packs, int cluster, int held) {
  return {.threads = 512, .packs = packs, .depth = 8, .lag = 1, .cluster = cluster, .held = held};
}
struct AddNormHalfChunks {
  static constexpr ChunkTile tiles[] = {add_norm_chunks(4, 2, 4), add_norm_chunks(4, 4, 4), add_norm_chunks(4, 8, 4),
                                        add_norm_chunks(4, 16, 4), add_norm_chunks(8, 16, 4)};
};
struct AddNormFloatChunks {
  static constexpr ChunkTile tiles[] = {add_norm_chunks(4, 2, 4), add_norm_chunks(8, 2, 8), add_norm_chunks(8, 4, 8),
                                        add_norm_chunks(8, 8, 8), add_norm_chunks(8, 16, 8)};
};
struct AddNormFewChunks {
  static constexpr ChunkTile tiles[] = {add_norm_chunks(4, 2, 2), add_norm_chunks(8, 2, 2), add_norm_chunks(4, 8, 2),
                                        add_norm_chunks(8, 16, 2)};
};

template <class Rows>
void launch_cluster(const Rows& rows, cudaStream_t stream) {
  using Common = std::conditional_t<sizeof(typename Rows::R) == 4, AddNormFloatChunks, AddNormHalfChunks>;
  using Tiles = TilesOf<std::conditional_t<Rows::kCommon, Common, AddNormFewChunks>>;
  static_assert(16 * kMostRowPacks<Tiles> == kMostClusterRowBytes);
  launch_chunks(ChunkedAddNorm<Rows>(rows), rows.cols / Rows::kWidth, rows.rows, stream, Tiles{});
}

}  // namespace warpsmith
