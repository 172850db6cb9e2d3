// The rungs `cluster` of the residual norms backward: rows streamed through row/chunks.cuh, each block keeping its slice of
// dw and db in registers.
#pragma once

#include "device/copy_async.h"
#include "device/moments.h"
#include "device/ptx/barrier.h"
#include "norm/add_norm_backward/row.cuh"
#include "norm/column_sums.cuh"
#include "row/chunks.cuh"

namespace warpsmith {

// Sums over a row or a part of it: layer norm's are around the part's own mean.
template <bool layer>
struct ChunkedGradientStats {
  float square, product;  // of h * h, of g * h
};

template <>
struct ChunkedGradientStats<true> {
  float count, mean, square, scaled, product;  // scaled: of g
};

// Rows whose way from dh to dx is worth a state of the thread (dropout_add_norm_backward/row.cuh).
template <class Rows>
concept HasWay = requires { typename Rows::Way; };

template <class Rows>
struct WayOf {};

template <HasWay Rows>
struct WayOf<Rows> : Rows::Way {};

template <class Rows>
struct ChunkedAddNormBackward : Rows {
  using Rows::kLayer;
  using typename Rows::H;
  using typename Rows::T;
  using typename Rows::W;
  static constexpr int kWidth = Rows::kWidth;
  using Stats = ChunkedGradientStats<kLayer>;
  struct Total {
    float mean, rstd;
    float shift;  // mean of g; 0 in RMS norm
    float slope;  // mean of g * xhat
  };

  explicit ChunkedAddNormBackward(const Rows& rows) : Rows(rows) {}

  template <int count>
  __device__ __forceinline__ Stats combine(const Stats* parts) const {
    const Stats part = parts[threadIdx.x % count];
    if constexpr (kLayer) {
      const Moments m = warp_merge_around<count>({part.count, part.mean, part.square});
      const float apart = part.count > 0.0f ? part.mean - m.mean : 0.0f;
      float sums[] = {part.scaled, fmaf(part.scaled, apart, part.product)};
      warp_reduce_all<count>(sums);
      return {m.count, m.mean, m.m2, sums[0], sums[1]};
    } else {
      float sums[] = {part.square, part.product};
      warp_reduce_all<count>(sums);
      return {sums[0], sums[1]};
    }
  }
  template <int count>
  __device__ __forceinline__ Total total(const Stats* parts) const {
    if constexpr (kLayer) {
      const Stats part = parts[threadIdx.x % count];
      const float reference = parts[0].mean;  // the first block has a part of every row
      const float distance = warp_reduce<count>(part.count * (part.mean - reference)) * this->inverse_count;
      const float apart = (part.mean - reference) - distance;
      const float square = warp_reduce<count>(fmaf(part.count * apart, apart, part.square));
      float sums[] = {part.scaled, fmaf(part.scaled, apart, part.product)};
      warp_reduce_all<count>(sums);
      const float variance = square * this->inverse_count;
      const float rstd = rsqrtf((variance < 0.0f ? 0.0f : variance) + this->eps);
      return {reference + distance, rstd, sums[0] * this->inverse_count, rstd * sums[1] * this->inverse_count};
    } else {
      const Stats s = combine<count>(parts);
      const float rstd = reciprocal_rms(s.square, this->inverse_count, this->eps);
      return {0.0f, rstd, 0.0f, rstd * s.product * this->inverse_count};
    }
  }

  template <class Tile>
  struct Work {
    using HPack = Vec<H, kWidth>;
    using GPack = Vec<T, kWidth>;
    using WPack = WeightPack<W, kWidth>;
    static constexpr int kPacks = Tile::packs, kThreads = Tile::threads;
    static constexpr int kEarlyBytes = kThreads * (sizeof(HPack) + sizeof(GPack)), kFirstBytes = 0;
    static constexpr int kLateBytes = kThreads * sizeof(HPack);
    using Word = std::conditional_t<sizeof(WPack) % 16 == 0, uint4, uint2>;
    static constexpr int kWords = sizeof(WPack) / sizeof(Word);
    static constexpr int kShelfBytes = Tile::shelf * kThreads * sizeof(WPack);
    static constexpr bool kResums = kLayer;
    // Where instructions bound, one fewer a value.
    static constexpr bool kLean = sizeof(H) == 2;
    // Few clusters fit the machine, so each adds up many rows: f32 keeps what rounding loses (Kahan 1965).
    static constexpr bool kCompensated = std::is_same_v<T, float> && kPacks <= 4;
    const ChunkedAddNormBackward& v;
    ChunkShare<kWidth, Tile> at;
    uint64_t policy;
    static constexpr bool kWay = HasWay<Rows>;
    // The thread's first packs of the rows under way, where registers are left for them.
    static constexpr bool kKeepsPlaces =
        !kLayer || kPacks < 4 || kThreads < 512 || (kWay && sizeof(WPack) <= sizeof(uint4));
    const H *h_place, *grad_h_place;
    const T* grad_place;
    H* dh_place;
    Word* shelf;  // [pack, word, thread]
    WPack held[Tile::held > 0 ? Tile::held : 1];
    float dw[kPacks][kWidth] = {}, db[kLayer ? kPacks : 1][kWidth] = {};
    float lost_dw[kCompensated ? kPacks : 1][kWidth] = {}, lost_db[kCompensated && kLayer ? kPacks : 1][kWidth] = {};
    float shift, deviation, square, scaled, product;  // sums around the shift, near the mean of the warp's values
    float count;                                      // of the warp's values
    WayOf<Rows> way;
    int late_packs;  // with a way, of this thread that have a grad_h: one register where v.grad_h takes two

    __device__ __forceinline__ Work(const ChunkedAddNormBackward& op, int rank, char* free)
        : v(op), at(op.cols, rank), policy(op.load_policy()), shelf(reinterpret_cast<Word*>(free) + threadIdx.x) {
#pragma unroll
      for (int i = 0; i < Tile::held + Tile::shelf; ++i) {
        if (!at.inside(i)) continue;
        if (i < Tile::held) {
          held[i].load_from(v.weight, at.col(i));
        } else {
          WPack w;
          w.load_from(v.weight, at.col(i));
#pragma unroll
          for (int j = 0; j < kWords; ++j) {
            shelf[((i - Tile::held) * kWords + j) * kThreads] = reinterpret_cast<const Word*>(&w)[j];
          }
        }
      }
      count = static_cast<float>(at.values());
      if constexpr (kWay) {
        late_packs = v.grad_h == nullptr ? 0 : at.mine;
        v.set_out(way, blockIdx.x / Tile::cluster);
      }
    }
    __device__ __forceinline__ static HPack* h_of(char* slot) { return reinterpret_cast<HPack*>(slot) + threadIdx.x; }
    __device__ __forceinline__ static GPack* grad_of(char* slot) {
      return reinterpret_cast<GPack*>(slot + kThreads * sizeof(HPack)) + threadIdx.x;
    }
    __device__ __forceinline__ void factors_of(float (&factor)[kWidth], int i) const {
      WPack w;
      if (i < Tile::held) {
        w = held[i];
      } else if (i < Tile::held + Tile::shelf) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          reinterpret_cast<Word*>(&w)[j] = shelf[((i - Tile::held) * kWords + j) * kThreads];
        }
      } else {
        w.load_from(v.weight, at.col(i));
      }
      w.to_floats(factor);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) factor[j] += v.weight_offset;
    }
    template <class P>
    __device__ __forceinline__ P* place(P* row, int i, P*& kept) const {
      return kKeepsPlaces ? at.place(row, i, kept) : row + at.col(i);
    }
    __device__ __forceinline__ void fetch(int i, char* slot, char*, int64_t row) {
      copy_async_if(at.inside(i), h_of(slot), place(v.h_row(row), i, h_place), policy);
      copy_async_if(at.inside(i), grad_of(slot), place(v.grad_row(row), i, grad_place), policy);
    }
    __device__ __forceinline__ void fetch_late(int i, char* slot, int64_t row) {
      if (!kWay && v.grad_h == nullptr) return;
      copy_async_if(kWay ? i < late_packs : at.inside(i), h_of(slot), place(v.grad_h_row(row), i, grad_h_place),
                    policy);
    }
    __device__ __forceinline__ void gather(int i, char* slot, char*, int64_t) {
      if (i == 0) {
        deviation = square = scaled = product = shift = 0.0f;
        if constexpr (kLayer) {
          const int heads = __popc(__ballot_sync(kAllLanes, at.inside(0)));
          // each divided before it is added, lest the sum leave the range
          const float head = at.inside(0) ? to_float((*h_of(slot))[0]) : 0.0f;
          shift = warp_reduce(__fdividef(head, fmaxf(heads, 1)));
        }
      }
      if (!at.inside(i)) return;
      float h[kWidth], grad[kWidth], factor[kWidth];
      to_float(h, *h_of(slot));
      to_float(grad, *grad_of(slot));
      factors_of(factor, i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float d = kLayer ? h[j] - shift : h[j], g = __fmul_rn(grad[j], factor[j]);
        square = fmaf(d, d, square);
        product = fmaf(g, d, product);
        if constexpr (kLayer) {
          deviation += d;
          scaled += g;
        }
      }
    }
    __device__ __forceinline__ Stats stats() const {
      if constexpr (kLayer) {
        float sums[] = {deviation, square, scaled, product};
        warp_reduce_all(sums);
        const float distance = count > 0.0f ? __fdividef(sums[0], count) : 0.0f;
        return {count, shift + distance, fmaf(-distance, sums[0], sums[1]), sums[2], fmaf(-distance, sums[2], sums[3])};
      } else {
        float sums[] = {square, product};
        warp_reduce_all(sums);
        return {sums[0], sums[1]};
      }
    }
    // Sums around a shift lose the sign of infinite ones, which those around the mean have.
    __device__ __forceinline__ bool lost(const Total& total) const {
      return !(fabsf(total.shift) + fabsf(total.slope) < INFINITY);
    }
    __device__ __forceinline__ float resum(int i, char* slot, const Total& total) const {
      if (!at.inside(i)) return 0.0f;
      float h[kWidth], grad[kWidth], factor[kWidth];
      to_float(h, *h_of(slot));
      to_float(grad, *grad_of(slot));
      WPack w;
      w.load_from(v.weight, at.col(i));
      w.to_floats(factor);
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sum = fmaf(__fmul_rn(grad[j], factor[j] + v.weight_offset), h[j] - total.mean, sum);
      }
      return sum;
    }
    __device__ __forceinline__ void mend(Total& total, float sum) const {
      total.slope = total.rstd * sum * v.inverse_count;
    }
    __device__ __forceinline__ H* dh_of(int i, int64_t row) {
      if constexpr (kWay) {
        H* const first = v.dh + way.before();
        return first + i * kThreads * kWidth;
      } else {
        return place(v.dh_row(row), i, dh_place);
      }
    }
    __device__ __forceinline__ T* dx_of(int i, int64_t row) const {
      if constexpr (kWay) {
        T* const first = v.dx + way.before();
        return first + i * kThreads * kWidth;
      } else {
        return v.dx_row(row) + at.col(i);
      }
    }
    __device__ __forceinline__ void finish(int i, char* slot, char* late, int64_t row, const Total& total) {
      if (i < Tile::held) held[i].keep();
      if constexpr (kWay) {
        if (i == 0) v.enter(way, row, at.first, row + gridDim.x / Tile::cluster);
      }
      H* const to = dh_of(i, row);
      if (!at.inside(i)) return;
      float h[kWidth], grad[kWidth], factor[kWidth], more[kWidth] = {}, d[kWidth];
      to_float(h, *h_of(slot));
      to_float(grad, *grad_of(slot));
      if (v.grad_h != nullptr) to_float(more, *h_of(late));
      factors_of(factor, i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float xhat = (kLayer ? h[j] - total.mean : h[j]) * total.rstd, g = __fmul_rn(grad[j], factor[j]);
        if constexpr (kLean) {
          const float c = kLayer ? fmaf(-total.rstd, total.shift, more[j]) : more[j];
          d[j] = fmaf(xhat, -total.rstd * total.slope, fmaf(g, total.rstd, c));
        } else {
          d[j] = total.rstd * fmaf(-xhat, total.slope, kLayer ? g - total.shift : g);
          d[j] += more[j];
        }
        if constexpr (kCompensated) {
          add_compensated(dw[i][j], lost_dw[i][j], grad[j] * xhat);
          if constexpr (kLayer) add_compensated(db[i][j], lost_db[i][j], grad[j]);
        } else {
          dw[i][j] = fmaf(grad[j], xhat, dw[i][j]);
          if constexpr (kLayer) db[i][j] += grad[j];
        }
      }
      HPack dh;
      from_float(dh, d);
      store<Cache::streaming>(to, dh);
      if (kWay || v.dx != nullptr) {  // a way leads somewhere
        GPack dx;
        if constexpr (kWay) {
          v.to_dx(d, way, i * kThreads * kWidth);
        } else {
          v.to_dx(d, row, at.col(i));
        }
        from_float(dx, d);
        store<Cache::streaming>(dx_of(i, row), dx);
      }
    }
    __device__ __forceinline__ void leave(int64_t cluster) const {
      ptx::allow_next_grid();
      const auto write = [&](const float (&sums)[kPacks][kWidth], float* partials) {
        write_column_sums(partials, cluster, v.cols, at, [&](int i, int j) { return sums[i][j]; });
      };
      write(dw, v.partial_dw);
      if constexpr (kLayer) write(db, v.partial_db);
    }
  };
};

template <class Rows, class Tiles>
void launch_cluster(const AddNormBackwardArgs& a, const Rows& rows, cudaStream_t stream, Tiles tiles) {
  constexpr int64_t kMostPacks = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;
  static_assert(Rows::kWidth * kMostPacks == 262144, "one limit for every dtype");
  const int64_t partials =
      launch_chunks(ChunkedAddNormBackward<Rows>(rows), a.cols / Rows::kWidth, a.most_partials, stream, tiles);
  sum_partials<typename Rows::W>(a, partials, stream);
}

}  // namespace warpsmith
