// The rungs `cluster` of the norms' gradients: rows streamed through row/chunks.cuh, each block keeping its slice of dw and
// db in registers. `Norm` is what norm/backward/norms.cuh describes.
#pragma once

#include "norm/backward/column_sums.cuh"
#include "norm/backward/norms.cuh"
#include "row/chunks.cuh"

namespace warpsmith {

// A thread's part of the weight or the bias: that of its first packs in registers, that of the next in shared memory, that
// of the last read again whenever it is asked for.
template <class Parameter, class X, class Tile>
struct ColumnSlice {
  static constexpr int kWidth = kPack<X>, kHeld = Tile::shape.held;
  static constexpr int kBytes = Tile::shape.shelf * Tile::shape.threads * 16;  // of shared memory of a block
  const Parameter& from;
  Pack<X>* shelf;  // [pack, thread]
  Pack<X> held[kHeld > 0 ? kHeld : 1];

  __device__ __forceinline__ ColumnSlice(const Parameter& parameter, char* free, const ChunkShare<kWidth, Tile>& at)
      : from(parameter), shelf(reinterpret_cast<Pack<X>*>(free) + threadIdx.x) {
#pragma unroll
    for (int i = 0; i < kHeld + Tile::shape.shelf; ++i) {
      if (!at.inside(i)) continue;
      if (i < kHeld) {
        held[i] = from.load(at.col(i));
      } else {
        shelf[(i - kHeld) * Tile::shape.threads] = from.load(at.col(i));
      }
    }
  }
  // What the compiler derived from a pack ahead of the rows would take registers, too.
  __device__ __forceinline__ void keep(int i) {
    if (i < kHeld) keep_packed(held[i]);
  }
  __device__ __forceinline__ Pack<X> get(int i, int col) const {
    if (i < kHeld) return held[i];
    return i < kHeld + Tile::shape.shelf ? shelf[(i - kHeld) * Tile::shape.threads] : from.load(col);
  }
};

template <class Norm>
struct ChunkedBackward : Norm {
  using typename Norm::Source;
  using typename Norm::X;
  static constexpr int kWidth = Norm::kWidth;
  // Where floats fit, xhat and grad * weight take the places of x and grad as they are gathered: nothing is done twice,
  // and no parameter is looked at again.
  static constexpr bool kInPlace = Norm::kReadsBias && sizeof(X) == sizeof(float);
  static constexpr bool kLean = Norm::kLean;
  using Stats = typename Norm::Partial;
  using Total = typename Norm::Factors;

  explicit ChunkedBackward(const NormBackwardArgs& a) : Norm(a) {}

  template <int count>
  __device__ __forceinline__ Stats combine(const Stats* parts) const {
    return this->template combine_some<count>(parts);
  }
  template <int count>
  __device__ __forceinline__ Total total(const Stats* parts) const {
    return this->template factors<kLean>(Norm::template combine<count>(parts, count));
  }

  template <class Tile>
  struct Work {
    static constexpr int kPacks = Tile::shape.packs, kThreads = Tile::shape.threads;
    static constexpr int kBytes = kThreads * static_cast<int>(sizeof(uint4));  // of a tensor's chunk
    static constexpr bool kDxState = HasDxState<Source>, kBias = Norm::kReadsBias;
    using Slice = ColumnSlice<typename Norm::Parameter, X, Tile>;
    static constexpr int kEarlyBytes = 2 * kBytes, kFirstBytes = 0, kLateBytes = Norm::kResidual ? kBytes : 0;
    static constexpr int kShelfBytes = (kBias ? 2 : 1) * Slice::kBytes;
    static constexpr bool kResums = Norm::kResums;
    // Few clusters fit the machine, so each adds up many rows: f32 keeps what rounding loses, where registers are left.
    using Sum = std::conditional_t<std::is_same_v<X, float> && kPacks <= 4, CompensatedSum, PlainSum>;
    // The thread's first packs of the rows under way, where registers are left for them.
    static constexpr bool kKeepsPlaces =
        !Norm::kResidual || !Norm::kShifted || kPacks < 4 || kThreads < 512 || kDxState;

    const ChunkedBackward& v;
    ChunkShare<kWidth, Tile> at;
    uint64_t policy;
    const X *x_place, *grad_x_place;
    const char* grad_place;
    X* dx_place;
    Slice weight;
    std::conditional_t<kBias, Slice, NoDxState> bias;
    OwnColumnSums<Sum, kPacks, kWidth, Norm::kBiasGradient> columns;
    typename Norm::Sums sums;
    float count;  // of the warp's values
    typename DxStateOf<Source>::type state;
    int late_packs;  // with a state, of this thread that have a grad_x: one register where v.grad_x takes two

    __device__ __forceinline__ Work(const ChunkedBackward& op, int rank, char* free)
        : v(op), at(op.cols, rank), policy(op.load_policy()), weight(op.weight, free, at), bias(bias_of(op, free, at)) {
      if constexpr (Norm::kShifted) count = static_cast<float>(at.values());
      if constexpr (kDxState) {
        late_packs = v.grad_x == nullptr ? 0 : at.mine;
        v.source.set_out(state, blockIdx.x / Tile::shape.cluster);
      }
    }
    __device__ __forceinline__ static auto bias_of(const ChunkedBackward& op, char* free,
                                                   const ChunkShare<kWidth, Tile>& at) {
      if constexpr (kBias) {
        return Slice(op.bias, free + Slice::kBytes, at);
      } else {
        return NoDxState{};
      }
    }

    // --- copies ---

    __device__ __forceinline__ static uint4& x_of(char* slot) { return reinterpret_cast<uint4*>(slot)[threadIdx.x]; }
    __device__ __forceinline__ static uint4& grad_of(char* slot) { return x_of(slot + kBytes); }
    template <class P>
    __device__ __forceinline__ P* place(P* row, int i, P*& kept) const {
      return kKeepsPlaces ? at.place(row, i, kept) : row + at.col(i);
    }
    __device__ __forceinline__ const char* place_of_grad(int64_t row, int i) {
      const int bytes = v.grad_bytes();
      if (!kKeepsPlaces) return v.grad_row(row) + at.col(i) * bytes;
      if (i == 0) grad_place = v.grad_row(row) + at.first * bytes;
      return grad_place + i * kThreads * kWidth * bytes;
    }
    __device__ __forceinline__ void copy(bool go, uint4& to, const X* from) const {
      copy_async_if(go, reinterpret_cast<Pack<X>*>(&to), from, policy);
    }
    __device__ __forceinline__ void fetch(int i, char* slot, char*, int64_t row) {
      copy(at.inside(i), x_of(slot), place(v.x_row(row), i, x_place));
      v.copy_grad(at.inside(i), &grad_of(slot), place_of_grad(row, i), policy);
    }
    __device__ __forceinline__ void fetch_late(int i, char* slot, int64_t row) {
      if (!kDxState && v.grad_x == nullptr) return;
      copy(kDxState ? i < late_packs : at.inside(i), x_of(slot), place(v.grad_x_row(row), i, grad_x_place));
    }

    // --- values ---

    // anywhere: where `i` is no constant, and no register can be named by it.
    template <bool anywhere = false>
    __device__ __forceinline__ NormPack<Norm> values(int i, char* slot) const {
      constexpr bool kAgain = anywhere && Tile::shape.held > 0;
      NormPack<Norm> to{};
      v.weight.floats(to.weight, kAgain ? v.weight.load(at.col(i)) : weight.get(i, at.col(i)), at.col(i));
      v.centre(to.weight);
      if constexpr (kBias) v.bias.floats(to.bias, bias.get(i, at.col(i)), at.col(i));
      to_float(to.x, reinterpret_cast<const Pack<X>&>(x_of(slot)));
      v.grad_floats(to.grad, grad_of(slot));
      return to;
    }

    // --- sums ---

    __device__ __forceinline__ void start(char* slot, [[maybe_unused]] int64_t row) {
      sums = {};
      if constexpr (Norm::kFromOutput) sums.rstd = v.rstd[row];
      if constexpr (Norm::kShifted) {
        const int heads = __popc(__ballot_sync(kAllLanes, at.inside(0)));
        // each divided before it is added, lest the sum leave the range
        const float head = at.inside(0) ? to_float(reinterpret_cast<const X&>(x_of(slot))) : 0.0f;
        sums.shift = warp_reduce(__fdividef(head, fmaxf(heads, 1)));
      }
    }
    __device__ __forceinline__ void gather(int i, char* slot, char*, int64_t row) {
      if (i == 0) start(slot, row);
      if constexpr (kInPlace) weight.keep(i);
      if (!at.inside(i)) return;
      const NormPack<Norm> in = values(i, slot);
      in.add_to(sums, v);
      if constexpr (kInPlace) {
        Pack<X> xhat, scaled;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          xhat[j] = v.xhat(in.x[j], in.weight[j], in.bias[j], {});
          scaled[j] = __fmul_rn(in.grad[j], in.weight[j]);
          columns.add(i, j, in.grad[j], xhat[j]);
        }
        reinterpret_cast<Pack<X>&>(x_of(slot)) = xhat;
        reinterpret_cast<Pack<X>&>(grad_of(slot)) = scaled;
      }
    }
    __device__ __forceinline__ Stats stats() const {
      WarpShare share{};
      if constexpr (Norm::kShifted) share = {count, count > 0.0f ? __fdividef(1.0f, count) : 0.0f, 0.0f};
      return v.template over_lanes<kWarp>(sums, share);
    }

    // --- infinite totals ---

    __device__ __forceinline__ bool lost(const Total& total) const { return v.Norm::lost(total); }
    __device__ __forceinline__ float resum(int i, char* slot, const Total& total) const {
      if (!at.inside(i)) return 0.0f;
      return values</*anywhere=*/true>(i, slot).product(total.mean);
    }
    __device__ __forceinline__ void mend(Total& total, float sum) const { v.Norm::template mend<kLean>(total, sum); }

    // --- results ---

    __device__ __forceinline__ X* dx_of(int i, int64_t row) {
      if constexpr (kDxState) {
        X* const first = v.dx_rows + state.before();
        return first + i * kThreads * kWidth;
      } else {
        return place(v.dx_row(row), i, dx_place);
      }
    }
    __device__ __forceinline__ void finish_branch(int i, int64_t row, float (&d)[kWidth]) const {
      constexpr int kStep = kThreads * kWidth;
      if constexpr (kDxState) {  // a branch with a state is always asked for
        v.source.to_branch(d, state, i * kStep);
        v.store_branch(state.before() + i * kStep, d);
      } else if (v.branch_dx != nullptr) {
        v.source.to_branch(d, row, at.col(i));
        v.store_branch(row * v.cols + at.col(i), d);
      }
    }
    __device__ __forceinline__ void finish(int i, char* slot, char* late, int64_t row, const Total& total) {
      if constexpr (!kInPlace) {
        weight.keep(i);
        if constexpr (kBias) bias.keep(i);
      }
      if constexpr (kDxState) {
        if (i == 0) v.source.enter(state, row, at.first, row + gridDim.x / Tile::shape.cluster);
      }
      X* const to = dx_of(i, row);
      if (!at.inside(i)) return;
      float d[kWidth];
      if constexpr (kInPlace) {
        const auto& xhat = reinterpret_cast<const Pack<X>&>(x_of(slot));
        const auto& scaled = reinterpret_cast<const Pack<X>&>(grad_of(slot));
#pragma unroll
        for (int j = 0; j < kWidth; ++j) d[j] = v.template dx<kLean>(xhat[j], scaled[j], 0.0f, total);
      } else {
        float more[kWidth] = {};
        if constexpr (Norm::kResidual) {
          if (v.grad_x != nullptr) to_float(more, reinterpret_cast<const Pack<X>&>(x_of(late)));
        }
        values(i, slot).finish(d, more, columns, i, total, v);
      }
      Pack<X> out;
      from_float(out, d);
      store<Cache::streaming>(to, out);
      if constexpr (Norm::kResidual) finish_branch(i, row, d);
    }
    __device__ __forceinline__ void leave(int64_t cluster) const {
      ptx::allow_next_grid();
      columns.each(v.partial_dw, v.partial_db, [&](float* partial, const Sum(&of)[kPacks][kWidth]) {
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
          if (at.inside(i)) store_sums(partial + cluster * v.cols + at.col(i), of[i]);
        }
      });
    }
  };
};

// Fewer for what is rarer.
struct WideWeightChunks {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 2, .held = 0},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 16, .held = 0},
  };
};

template <class Norms, class HalfTiles, class FloatTiles>
void launch_backward_cluster(const NormBackwardArgs& a, cudaStream_t stream) {
  visit_norm_backward<Norms>(a, [&]<class Norm, bool wide>() {
    using Tiles = TilesOf<std::conditional_t<wide, WideWeightChunks,
                                             std::conditional_t<sizeof(typename Norm::X) == 2, HalfTiles, FloatTiles>>>;
    static_assert(Norm::kWidth * kMostRowPacks<Tiles> == kMostBackwardCluster, "one limit for every dtype");
    const int64_t clusters =
        launch_chunks(ChunkedBackward<Norm>(a), a.cols / Norm::kWidth, a.most_partials, stream, Tiles{});
    sum_partials(a, clusters, stream);
  });
}

}  // namespace warpsmith
