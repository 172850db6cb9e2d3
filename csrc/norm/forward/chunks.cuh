// The rungs `cluster` of the residual norms: rows streamed through row/chunks.cuh. h, once added, takes the place of
// residual in the ring.
#pragma once

#include "device/copy_async.h"
#include "norm/forward/row.cuh"
#include "row/chunks.cuh"

namespace warpsmith {

template <class Row>
struct ChunkedNorm : Row {
  using Row::kLayer;
  using Row::kWidth;
  using typename Row::Stats;
  using typename Row::Total;
  using T = typename Row::Value;
  using Columns = typename Row::Columns;

  explicit ChunkedNorm(const Row& row) : Row(row) {}

  template <int count>
  __device__ __forceinline__ Total total(const Stats* parts) const {
    return Row::total(Row::template combine<count>(parts));
  }

  template <class Tile>
  struct Work {
    static constexpr ChunkTile tile = Tile::shape;
    static constexpr int kEarlyBytes = tile.threads * 16, kFirstBytes = tile.threads * Row::kInputBytes;
    static constexpr int kLateBytes = 0, kShelfBytes = 0;
    static constexpr bool kResums = false;
    using X = std::conditional_t<Row::kInputBytes == 8, uint2, uint4>;

    const ChunkedNorm& v;
    ChunkShare<kWidth, Tile> at;
    uint64_t policy;
    // The thread's first packs of the rows under way.
    const X* x_place;
    const uint4* residual_place;
    int64_t h_at, y_at;  // from the first element
    Columns held[tile.held];
    float shift, deviation, square;  // the sums are around the shift, near the mean of the warp's values
    float count, inverse;            // of the warp's values
    float inverse_heads;             // of its lanes that have any

    __device__ __forceinline__ Work(const ChunkedNorm& op, int rank, char*)
        : v(op), at(op.cols, rank), policy(op.load_policy()) {
      if (!v.wide_weights) {
#pragma unroll
        for (int i = 0; i < tile.held; ++i) {
          if (at.inside(i)) held[i].load_from(v, at.col(i));
        }
      }
      count = static_cast<float>(at.values());
      inverse = count > 0.0f ? 1.0f / count : 0.0f;
      inverse_heads = at.lanes(0) > 0 ? 1.0f / static_cast<float>(at.lanes(0)) : 0.0f;
    }
    __device__ __forceinline__ static uint4* h_of(char* slot) { return reinterpret_cast<uint4*>(slot) + threadIdx.x; }
    __device__ __forceinline__ static X* x_of(char* slot) { return reinterpret_cast<X*>(slot) + threadIdx.x; }
    __device__ __forceinline__ void fetch(int i, char* early, char* first, int64_t row) {
      ptx::cp_async_with_policy_if(at.inside(i), x_of(first), place(v.input(0, row), i, x_place), policy);
      if (v.residual == nullptr) return;
      ptx::cp_async_with_policy_if(at.inside(i), h_of(early), place(v.input(1, row), i, residual_place), policy);
    }
    __device__ __forceinline__ void gather(int i, char* early, char* first, int64_t row) {
      uint4 h{};
      if (at.inside(i)) {
        if (v.residual != nullptr) h = *h_of(early);
        const X raw = *x_of(first);
        if constexpr (Row::kInputBytes == 8) {
          h = v.join(row, at.col(i), {raw.x, raw.y, 0, 0}, h);
        } else {
          h = v.join(row, at.col(i), raw, h);
        }
        if (i == 0) h_at = row * v.cols + at.first;
        v.hand_out(h_at + i * tile.threads * kWidth, h);
        *h_of(early) = h;
      }
      float values[kWidth];
      unpack<T>(values, h);
      if (i == 0) {
        shift = deviation = square = 0.0f;
        if constexpr (kLayer) shift = warp_reduce(values[0] * inverse_heads);
      }
      if (!at.inside(i)) return;
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
      if (i < tile.held) held[i].keep(detail::unknown_zero(v));
      if (i == 0) y_at = row * v.cols + at.first;
      if (!at.inside(i)) return;
      const uint4 h = *h_of(early);
      const int64_t to = y_at + i * tile.threads * kWidth;
      v.with_weights([&]<class Any>() {
        Any columns;
        if constexpr (std::is_same_v<Any, Columns>) {
          if (i < tile.held) return v.finish_at(to, h, total, held[i < tile.held ? i : 0]);
        }
        columns.load_from(v, at.col(i));
        v.finish_at(to, h, total, columns);
      });
    }
    __device__ __forceinline__ void leave(int64_t) const {}

   private:
    // Where the thread's i-th pack of a row lies. `kept`, its first one, is found anew with the first of every row only.
    template <class P>
    __device__ __forceinline__ const P* place(const void* row, int i, const P*& kept) const {
      if (i == 0) kept = static_cast<const P*>(row) + at.first / kWidth;
      return kept + i * tile.threads;
    }
  };
};

constexpr ChunkTile norm_chunks(int packs, int cluster, int held) {
  return {.threads = 512, .packs = packs, .depth = 8, .lag = 1, .cluster = cluster, .held = held};
}
struct HalfChunks {
  static constexpr ChunkTile tiles[] = {norm_chunks(4, 2, 4), norm_chunks(4, 4, 4), norm_chunks(4, 8, 4),
                                        norm_chunks(4, 16, 4), norm_chunks(8, 16, 4)};
};
struct FloatChunks {
  static constexpr ChunkTile tiles[] = {norm_chunks(4, 2, 4), norm_chunks(8, 2, 8), norm_chunks(8, 4, 8),
                                        norm_chunks(8, 8, 8), norm_chunks(8, 16, 8)};
};
// Fewer for what is rarer, which holds fewer columns in registers too.
struct FewChunks {
  static constexpr ChunkTile tiles[] = {norm_chunks(4, 2, 2), norm_chunks(8, 2, 2), norm_chunks(4, 8, 2),
                                        norm_chunks(8, 16, 2)};
};

template <class Flow, class Args>
void launch_norm_chunks(const Args& a, cudaStream_t stream) {
  visit_norm<Flow>(a, [&]<class Row>() {
    using Common = std::conditional_t<sizeof(typename Row::Value) == 4, FloatChunks, HalfChunks>;
    constexpr bool kRare = Row::Flow::kMixed || Flow::kFp8 || Flow::kDropout;
    using Tiles = TilesOf<std::conditional_t<kRare, FewChunks, Common>>;
    static_assert(16 * kMostRowPacks<Tiles> == kMostChunkedBytes);
    launch_chunks(ChunkedNorm<Row>(Row(a)), a.cols / Row::kWidth, a.rows, stream, Tiles{});
  });
}

}  // namespace warpsmith
