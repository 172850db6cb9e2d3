// The persistent kernel behind the rungs `registers` of the norms' gradients: a block walks over rows, keeping the weight,
// dw and db of its columns in registers, while the rows to come arrive in a ring in shared memory. `Norm` is what
// norm/backward/norms.cuh describes.
#pragma once

#include "device/ptx/barrier.h"
#include "device/ptx/copy.h"
#include "host/min_max.h"
#include "host/occupancy.h"
#include "host/tiles.h"
#include "norm/backward/column_sums.cuh"
#include "norm/backward/norms.cuh"

namespace warpsmith {

struct BackwardTile {
  int threads;                    // of a block, at most
  int lanes = 0;                  // threads that share a row; 0: the block, cut to what the row needs
  int packs;                      // 128-bit packs of a row that a thread holds
  int stages;                     // rows in the ring
  bool held = true;               // weight and bias in registers
  bool shelf = false;             // or else in shared memory; otherwise they are read again for every row
  int min_blocks;                 // of `threads`, per multiprocessor
  int older_blocks = min_blocks;  // the same below sm_90, where a kernel may take more registers

  constexpr int rows_per_block() const { return lanes > 0 ? threads / lanes : 1; }
  constexpr int64_t most_packs() const { return int64_t{lanes > 0 ? lanes : threads} * packs; }
  constexpr BackwardTile with_stages(int n) const {
    return {threads, lanes, packs, n, held, shelf, min_blocks, older_blocks};
  }
  constexpr int resident_blocks() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    return older_blocks;
#else
    return min_blocks;
#endif
  }
};

template <class Tile>
struct OneStage {
  static constexpr BackwardTile shape = Tile::shape.with_stages(1);
};

// Bytes: what every GPU from sm_80 on grants a block at launch, and what the kernel declares besides.
inline constexpr int kCommonSmem = 96 * 1024, kStaticSmem = 2048;

// A thread's place: the packs of a row that are its own.
template <int width, class Tile>
struct RowPlace {
  static constexpr BackwardTile tile = Tile::shape;
  static constexpr bool kShared = tile.lanes > 0;  // several rows in a block
  int lanes, lane;
  int group;  // the row of the block
  int packs;  // of a row
  int mine;

  __device__ explicit RowPlace(int64_t cols)
      : lanes(kShared ? tile.lanes : blockDim.x),
        lane(kShared ? threadIdx.x % tile.lanes : threadIdx.x),
        group(kShared ? threadIdx.x / tile.lanes : 0),
        packs(static_cast<int>(cols / width)),
        mine(packs > lane ? (packs - lane + lanes - 1) / lanes : 0) {}
  __device__ __forceinline__ int col(int i) const { return (i * lanes + lane) * width; }
  __device__ WarpShare share() const {
    if constexpr (!kShared) return WarpShare::of_block(packs, width);
    const float count = static_cast<float>(packs * width);
    return {count, 1.0f / count, 1.0f / static_cast<float>(min(packs, lanes))};
  }
};

// The rows to come, [stages, packs, x | grad | grad_x] of each thread, which reads its own copies only.
template <class Norm, class Tile>
struct BackwardRing {
  static constexpr BackwardTile tile = Tile::shape;
  static constexpr int kWidth = Norm::kWidth, kTensors = Norm::kResidual ? 3 : 2;
  static constexpr int kWords = tile.stages * tile.packs * kTensors;
  // With them lie, where the tile says so, weight and bias.
  static constexpr int kShelfWords = tile.shelf ? tile.packs * (Norm::kReadsBias ? 2 : 1) : 0;
  static constexpr int bytes(int threads) { return (kWords + kShelfWords) * threads * static_cast<int>(sizeof(uint4)); }
  // From one word of a thread to the next, a constant, so that it becomes an instruction's immediate offset: those of a warp
  // are contiguous, or those of a block whose size is known.
  static constexpr int kStride = tile.lanes > 0 ? tile.threads : kWarp;
  // Copies are predicated, since behind branches their addresses are found again for each; in a ring of one row, where
  // registers are fewest, they come one after the other.
  static constexpr bool kBranches = Norm::kResidual && tile.stages == 1;

  const Norm& v;
  const RowPlace<kWidth, Tile>& at;
  uint4* own;
  uint64_t policy;

  __device__ BackwardRing(uint4* shared, const Norm& rows, const RowPlace<kWidth, Tile>& place)
      : v(rows), at(place), policy(Norm::kResidual ? rows.load_policy() : 0) {
    const int tid = threadIdx.x;
    own = shared + (tile.lanes > 0 ? tid : tid / kWarp * ((kWords + kShelfWords) * kWarp) + tid % kWarp);
  }
  __device__ __forceinline__ uint4& shelf(int i) const { return own[(kWords + i) * kStride]; }
  __device__ __forceinline__ uint4& x(int stage, int i) const { return word(stage, i, 0); }
  __device__ __forceinline__ uint4& grad(int stage, int i) const { return word(stage, i, 1); }
  __device__ __forceinline__ uint4& grad_x(int stage, int i) const { return word(stage, i, 2); }

  __device__ __forceinline__ void fetch_pack(int stage, int64_t row, int i) const {
    const bool go = row < v.rows && i < at.mine;
    if constexpr (Norm::kResidual) {
      if (kBranches && !go) return;
      copy_x(go, x(stage, i), v.x_row(row) + at.col(i));
      v.copy_grad(go, &grad(stage, i), v.grad_row(row) + at.col(i) * v.grad_bytes(), policy);
      if (v.grad_x != nullptr) copy_x(go, grad_x(stage, i), v.grad_x_row(row) + at.col(i));
    } else {
      const auto* from_x = reinterpret_cast<const uint4*>(v.x_row(row) + at.col(0));
      const auto* from_grad = reinterpret_cast<const uint4*>(v.grad_row(row)) + at.lane;
      ptx::cp_async_if(go, &x(stage, i), from_x + i * at.lanes);
      ptx::cp_async_if(go, &grad(stage, i), from_grad + i * at.lanes);
    }
  }
  __device__ __forceinline__ void fetch(int stage, int64_t row) const {
#pragma unroll
    for (int i = 0; i < tile.packs; ++i) fetch_pack(stage, row, i);
    ptx::cp_async_commit();
  }

 private:
  __device__ __forceinline__ uint4& word(int stage, int i, int tensor) const {
    return own[((stage * tile.packs + i) * kTensors + tensor) * kStride];
  }
  __device__ __forceinline__ void copy_x(bool go, uint4& to, const typename Norm::X* from) const {
    copy_async_if(go, reinterpret_cast<Pack<typename Norm::X>*>(&to), from, policy);
  }
};

template <class Norm, class Tile>
struct RegistersBackward {
  static constexpr BackwardTile tile = Tile::shape;
  using X = typename Norm::X;
  using Place = RowPlace<Norm::kWidth, Tile>;
  static constexpr int kPacks = tile.packs, kWidth = Norm::kWidth;
  static constexpr int kReduced = tile.lanes > 0 ? tile.lanes : kWarp;

  const Norm& v;
  const Place& at;
  const BackwardRing<Norm, Tile>& ring;
  static constexpr int kHeld = tile.held ? kPacks : 1;
  Pack<X> held_weight[kHeld], held_bias[Norm::kReadsBias ? kHeld : 1];
  OwnColumnSums<PlainSum, kPacks, kWidth, Norm::kBiasGradient> sums;

  __device__ __forceinline__ RegistersBackward(const Norm& rows, const Place& place,
                                               const BackwardRing<Norm, Tile>& from)
      : v(rows), at(place), ring(from) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (i >= at.mine) continue;
      put(held_weight, i, v.weight);
      if constexpr (Norm::kReadsBias) put(held_bias, kPacks + i, v.bias);
    }
  }
  // The packs of weight and then of bias, where the tile wants them.
  __device__ __forceinline__ void put(Pack<X> (&held)[kHeld], int i, const typename Norm::Parameter& from) {
    const Pack<X> pack = from.load(at.col(i % kPacks));
    if (tile.held) held[i % kPacks] = pack;
    if (tile.shelf) ring.shelf(i) = reinterpret_cast<const uint4&>(pack);
  }
  __device__ __forceinline__ void get(float (&to)[kWidth], const Pack<X> (&held)[kHeld], int i,
                                      const typename Norm::Parameter& from) const {
    const int col = at.col(i % kPacks);
    Pack<X> pack;
    if constexpr (tile.held) {
      pack = held[i % kPacks];
    } else if constexpr (tile.shelf) {
      reinterpret_cast<uint4&>(pack) = ring.shelf(i);
    } else {
      pack = from.load(col);
    }
    from.floats(to, pack, col);
  }

  __device__ __forceinline__ NormPack<Norm> values(int i, const uint4& x, const uint4& grad) const {
    NormPack<Norm> to{};
    to_float(to.x, reinterpret_cast<const Pack<X>&>(x));
    v.grad_floats(to.grad, grad);
    get(to.weight, held_weight, i, v.weight);
    v.centre(to.weight);
    if constexpr (Norm::kReadsBias) get(to.bias, held_bias, kPacks + i, v.bias);
    return to;
  }

  // A pack is read while the one before is worked on, where registers are left for it.
  static constexpr bool kAhead = !Norm::kResidual;

  // What this thread's warp knows of a row, of which the thread has `limit` packs.
  __device__ __forceinline__ typename Norm::Partial gather(int stage, int limit, float rstd,
                                                           const WarpShare& share) const {
    uint4 next_x = ring.x(stage, 0), next_grad = ring.grad(stage, 0);
    typename Norm::Sums sums{};
    if constexpr (Norm::kFromOutput) sums.rstd = rstd;
    if constexpr (Norm::kShifted) {
      const float head = limit > 0 ? to_float(reinterpret_cast<const X&>(next_x)) : 0.0f;
      // In parts of kWarp, lest the sum leave the range; the number of heads would be held in one more register.
      constexpr float kPart = 1.0f / kWarp;
      sums.shift = warp_reduce<kReduced>(head * kPart) * share.inverse_heads * kWarp;
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const uint4 x = kAhead ? next_x : ring.x(stage, i), grad = kAhead ? next_grad : ring.grad(stage, i);
      if (kAhead && i + 1 < kPacks) {
        next_x = ring.x(stage, i + 1);
        next_grad = ring.grad(stage, i + 1);
      }
      if (i >= limit) continue;
      values(i, x, grad).add_to(sums, v);
    }
    return v.template over_lanes<kReduced>(sums, share);
  }

  // The thread's share of the sum that mends the row's factors.
  __device__ __forceinline__ float resum(int stage, int limit, const typename Norm::Factors& factors) const {
    float product = 0.0f;
    // Unrolled, though rare: with a loop inside, that over the rows would load constants anew for every row.
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (i >= limit) continue;
      NormPack<Norm> in;
      to_float(in.x, reinterpret_cast<const Pack<X>&>(ring.x(stage, i)));
      v.grad_floats(in.grad, ring.grad(stage, i));
      v.weight.floats(in.weight, v.weight.load(at.col(i)), at.col(i));
      v.centre(in.weight);
      product += in.product(factors.mean);
    }
    return product;
  }

  // dx, and what the row adds to dw and db; then `left(i)`, as the ring's place of a pack is free.
  template <class Left>
  __device__ __forceinline__ void finish(int stage, int limit, int64_t row, const typename Norm::Factors& factors,
                                         Left&& left) {
    // Two packs stay in registers from the first sweep on; for more there is no room, and this makes them be read again.
    if constexpr (kPacks > 2) __syncwarp();
    X* const to = v.dx_row(row) + at.col(0);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if constexpr (tile.held) keep_packed(held_weight[i]);
      if constexpr (tile.held && Norm::kReadsBias) keep_packed(held_bias[i]);
      if (i < limit) {
        float d[kWidth];
        values(i, ring.x(stage, i), ring.grad(stage, i)).finish(d, {}, sums, i, factors, v);
        if constexpr (Norm::kResidual) {
          if (v.grad_x != nullptr) {  // only now, when there are registers for it
            float more[kWidth];
            to_float(more, reinterpret_cast<const Pack<X>&>(ring.grad_x(stage, i)));
#pragma unroll
            for (int j = 0; j < kWidth; ++j) d[j] += more[j];
          }
        }
        Pack<X> out;
        from_float(out, d);
        store<Cache::streaming>(to + i * at.lanes * kWidth, out);
        if constexpr (Norm::kResidual) {
          if (v.branch_dx != nullptr) {
            v.source.to_branch(d, row, at.col(i));
            v.store_branch(row * v.cols + at.col(i), d);
          }
        }
      }
      left(i);
    }
  }

  // One partial dw and db per block.
  __device__ __forceinline__ void leave(uint4* shared) const {
    if constexpr (Place::kShared) ptx::cp_async_wait<0>();
    sums.each(v.partial_dw, v.partial_db, [&](float* partial, const PlainSum(&of)[kPacks][kWidth]) {
      partial += int64_t{blockIdx.x} * v.cols;
      if constexpr (!Place::kShared) {
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
          if (i < at.mine) store_sums(partial + at.col(i), of[i]);
        }
      } else {
        constexpr int kRowFloats = tile.lanes * kPacks * kWidth;
        float* const rows = reinterpret_cast<float*>(shared);  // [rows of the block, a row's columns]
        __syncthreads();                                       // the ring is free
#pragma unroll
        for (int i = 0; i < kPacks; ++i) store_sums(rows + at.group * kRowFloats + at.col(i), of[i]);
        __syncthreads();
        for (int i = threadIdx.x; i < at.packs * kWidth; i += blockDim.x) {
          float sum = rows[i];
#pragma unroll
          for (int row = 1; row < tile.rows_per_block(); ++row) sum += rows[row * kRowFloats + i];
          partial[i] = sum;
        }
      }
    });
  }
};

template <class Norm, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads, Tile::shape.resident_blocks())
    norm_backward_registers_kernel(const Norm v) {
  constexpr BackwardTile tile = Tile::shape;
  constexpr int kWarps = tile.threads / kWarp, kStages = tile.stages, kReduced = tile.lanes > 0 ? tile.lanes : kWarp;
  extern __shared__ uint4 shared[];
  __shared__ typename Norm::Partial parts[2][kWarps];
  const RowPlace<Norm::kWidth, Tile> at(v.cols);
  const BackwardRing<Norm, Tile> ring(shared, v, at);
  const int64_t step = int64_t{gridDim.x} * tile.rows_per_block();
  int64_t row = int64_t{blockIdx.x} * tile.rows_per_block() + at.group;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) ring.fetch(stage, row + stage * step);
  RegistersBackward<Norm, Tile> work(v, at, ring);
  const WarpShare share = at.share();

  // Rows that share a block come together, the last of them beyond the end.
  for (int stage = 0, buffer = 0; row - at.group < v.rows; row += step) {
    const int limit = row < v.rows ? at.mine : 0;
    float rstd = 0.0f;
    if constexpr (Norm::kFromOutput) {
      if (row < v.rows) rstd = v.rstd[row];
    }

    // gather
    ptx::cp_async_wait<kStages - 1>();
    typename Norm::Partial part = work.gather(stage, limit, rstd, share);
    if constexpr (tile.lanes == 0) part = block_combine(v, part, parts[buffer]);
    typename Norm::Factors factors = v.template factors<Norm::kLean>(part);
    if constexpr (Norm::kResums) {
      if (__any_sync(kAllLanes, v.lost(factors))) {  // in the whole block, if that shares the row
        __shared__ float resums[2][kWarp];
        const float product = work.resum(stage, limit, factors);
        const float sum = tile.lanes > 0 ? warp_reduce<kReduced>(product) : block_sum(product, resums[buffer]);
        if (v.lost(factors)) v.template mend<Norm::kLean>(factors, sum);
      }
    }

    // finish
    if constexpr (kStages == 1) {
      work.finish(0, limit, row, factors, [&](int i) { ring.fetch_pack(0, row + step, i); });
      ptx::cp_async_commit();
    } else {
      work.finish(stage, limit, row, factors, [](int) {});
      ring.fetch(stage, row + kStages * step);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    buffer ^= 1;  // another warp may be one row ahead, never two
  }

  ptx::allow_next_grid();
  work.leave(shared);
}

template <class Norm, class Tile>
void launch_backward_tile(const NormBackwardArgs& a, cudaStream_t stream) {
  constexpr BackwardTile tile = Tile::shape;
  using Ring = BackwardRing<Norm, Tile>;
  constexpr auto kernel = &norm_backward_registers_kernel<Norm, Tile>;
  static_assert(tile.lanes == 0 || Ring::kWords * sizeof(uint4) >= tile.packs * Norm::kWidth * sizeof(float),
                "dw must fit where the ring was");
  LaunchConfig config;
  config.block = dim3(tile.lanes > 0 ? tile.threads : row_threads(a.cols / Norm::kWidth, tile.packs, tile.threads));
  config.dynamic_smem = Ring::bytes(static_cast<int>(config.block.x));
  if constexpr (tile.stages > 1 && Ring::bytes(tile.threads) > kCommonSmem) {
    if (config.dynamic_smem > kCommonSmem && config.dynamic_smem + kStaticSmem > block_smem_limit()) {
      return launch_backward_tile<Norm, OneStage<Tile>>(a, stream);
    }
  }
  const int64_t batches = (a.rows + tile.rows_per_block() - 1) / tile.rows_per_block();
  // More blocks would be resident of most tiles, but memory slows down once more rows are under way than its latency takes.
  const int64_t wanted = int64_t{device_info(current_device()).sm_count} * tile.min_blocks * tile.threads;
  const int64_t resident = clamp<int64_t>(wanted / config.block.x, 1, resident_clusters<kernel>(config));
  const int64_t blocks = min_of(batches, a.most_partials, resident);
  config.grid = dim3(static_cast<unsigned>(blocks));
  launch<kernel>(config, stream, Norm(a));
  sum_partials(a, blocks, stream);
}

// Fewer for what is rarer.
struct WideWeightTiles {
  static constexpr BackwardTile tiles[] = {
      {.threads = 256, .lanes = 32, .packs = 1, .stages = 3, .held = false, .min_blocks = 2},
      {.threads = 512, .packs = 2, .stages = 2, .held = false, .min_blocks = 1},
  };
};

template <class Norms, class HalfTiles, class FloatTiles>
void launch_backward_registers(const NormBackwardArgs& a, cudaStream_t stream) {
  visit_norm_backward<Norms>(a, [&]<class Norm, bool wide>() {
    using Tiles = TilesOf<std::conditional_t<wide, WideWeightTiles,
                                             std::conditional_t<sizeof(typename Norm::X) == 2, HalfTiles, FloatTiles>>>;
    static_assert(Norm::kWidth * kMostRowPacks<Tiles> == kMostBackwardRegisters, "one limit for every dtype");
    with_first_tile(Tiles{}, a.cols / Norm::kWidth, [&]<class Tile>() { launch_backward_tile<Norm, Tile>(a, stream); });
  });
}

}  // namespace warpsmith
