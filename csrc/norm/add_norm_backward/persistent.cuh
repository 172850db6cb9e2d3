// The persistent kernel behind `registers`: a block walks over rows, keeping the weight, dw and db in registers, while the
// rows to come arrive in a ring in shared memory.
#pragma once

#include <tuple>

#include "device/copy_async.h"
#include "device/ptx/barrier.h"
#include "norm/add_norm_backward/row.cuh"
#include "norm/resident_blocks.h"

namespace warpsmith {

// threads of a block (at most) | threads that share a row, 0: the block, cut to what the row needs |
// packs of a row that a thread holds | rows in the ring | blocks of `threads` per multiprocessor
template <int threads_, int lanes_, int packs_, int stages_, int min_blocks_>
struct AddNormBackwardTile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, stages = stages_;
  static constexpr int min_blocks = min_blocks_;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
  static constexpr int64_t most_packs = int64_t{lanes > 0 ? lanes : threads} * packs;
};

// Bytes that every GPU from sm_80 on grants a block for its ring.
inline constexpr int kCommonRing = 96 * 1024;

// One row of the ring: grad, h and grad_h, each [packs, threads]. A thread reads and writes its own packs only.
template <class Rows, class Tile>
struct AddNormBackwardRing {
  using GradPack = Vec<typename Rows::T, Rows::kWidth>;
  using HPack = Vec<typename Rows::H, Rows::kWidth>;

  static constexpr int stage_bytes(int threads) {
    return Tile::packs * threads * static_cast<int>(2 * sizeof(HPack) + sizeof(GradPack));
  }
  static constexpr int bytes(int threads) { return Tile::stages * stage_bytes(threads); }

  // Packs of a thread are so far apart, a distance that the instructions carry themselves: those of a warp lie together,
  // or those of a block whose size is known.
  static constexpr int kApart = Tile::lanes > 0 ? Tile::threads : kWarp;
  HPack* own_h;
  GradPack* own_grad;

  __device__ __forceinline__ AddNormBackwardRing(uint4* ring, int index) {
    char* stage = reinterpret_cast<char*>(ring) + index * stage_bytes(kApart);
    int place = threadIdx.x;
    if constexpr (Tile::lanes == 0) {
      stage += place / kWarp * bytes(kWarp);
      place %= kWarp;
    }
    own_h = reinterpret_cast<HPack*>(stage) + place;
    own_grad = reinterpret_cast<GradPack*>(stage + 2 * Tile::packs * kApart * sizeof(HPack)) + place;
  }
  __device__ __forceinline__ HPack* h(int i) const { return own_h + i * kApart; }
  __device__ __forceinline__ HPack* grad_h(int i) const { return h(Tile::packs + i); }
  __device__ __forceinline__ GradPack* grad(int i) const { return own_grad + i * kApart; }
};

// Sums over everyone who shares a row, in turns counted from 0.
template <class Tile>
struct RowExchange {
  static constexpr int kMost = 3, kWarps = Tile::threads / kWarp;
  float partial[2][kMost][kWarps];  // [buffer, value, warp]

  template <int n>
  __device__ __forceinline__ void sum(float (&values)[n], int turn) {
#pragma unroll
    for (int k = 0; k < n; ++k) values[k] = warp_reduce<(Tile::lanes > 0 ? Tile::lanes : kWarp)>(values[k]);
    const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
    if (Tile::lanes > 0 || warps == 1) return;
    float (&mine)[kMost][kWarps] = partial[turn & 1];
    if (lane == 0) {
#pragma unroll
      for (int k = 0; k < n; ++k) mine[k][threadIdx.x / kWarp] = values[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const int warp = lane % kWarps;
      values[k] = warp_reduce<kWarps>(warp < warps ? mine[k][warp] : 0.0f);
    }
  }
};

template <class Rows, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks) add_norm_backward_persistent_kernel(const Rows v) {
  using T = typename Rows::T;
  using H = typename Rows::H;
  using Sums = AddNormSums<Rows::kLayer>;
  using Ring = AddNormBackwardRing<Rows, Tile>;
  constexpr int kPacks = Tile::packs, kStages = Tile::stages, kWidth = Rows::kWidth;
  constexpr bool kShared = Tile::lanes > 0;  // several rows in a block
  extern __shared__ uint4 ring[];            // [stages]; a thread reads its own copies only
  __shared__ RowExchange<Tile> reduction;

  const int tid = threadIdx.x;
  const int lanes = kShared ? Tile::lanes : blockDim.x;
  const int lane = kShared ? tid % lanes : tid;
  const int group = kShared ? tid / lanes : 0;
  const int packs = static_cast<int>(v.cols / kWidth);
  const int64_t block = blockIdx.x, step = int64_t{gridDim.x} * Tile::rows_per_block;
  const auto col = [&](int i) { return (i * lanes + lane) * kWidth; };

  const uint64_t policy = v.load_policy();
  const int own = packs > lane ? (packs - lane + lanes - 1) / lanes : 0;  // packs of this thread
  // Copies are predicated, since behind branches their addresses are found anew for each; but where registers are fewest,
  // they come one after the other.
  constexpr bool kBranches = kStages == 1 || (Tile::lanes == 0 && sizeof(T) < sizeof(H));
  const auto fetch_pack = [&](const Ring& to, int64_t row, int i) {
    const bool go = row < v.rows && i < own;
    if (kBranches && !go) return;
    copy_async_if(go, to.h(i), v.h_row(row) + col(i), policy);
    copy_async_if(go, to.grad(i), v.grad_row(row) + col(i), policy);
    if (v.grad_h != nullptr) copy_async_if(go, to.grad_h(i), v.grad_h_row(row) + col(i), policy);
  };
  const auto fetch = [&](int stage, int64_t row) {
    const Ring to(ring, stage);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) fetch_pack(to, row, i);
    ptx::cp_async_commit();
  };

  int64_t base = block * Tile::rows_per_block;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch(stage, base + group + stage * step);
  constexpr int kDbPacks = Rows::kLayer ? kPacks : 1;
  // Where sums take most of the registers, the weight is read again for every row, from L1, where nothing else passes.
  constexpr int kSums = Rows::kLayer ? 2 : 1;  // registers for each column
  constexpr float kWeights = sizeof(typename Rows::W) / 4.0f;
  constexpr bool kHoldsWeight = kPacks <= 4 && kPacks * kWidth * (kSums + kWeights) <= 48;
  WeightPack<typename Rows::W, kWidth> weight[kHoldsWeight ? kPacks : 1];
  float dw[kPacks][kWidth] = {};
  [[maybe_unused]] float db[kDbPacks][kWidth] = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (kHoldsWeight && i < own) weight[i].load_from(v.weight, col(i));
  }
  const auto factors_of = [&](float (&factor)[kWidth], int i) {
    if constexpr (!kHoldsWeight) weight[0].load_from(v.weight, col(i));
    weight[kHoldsWeight ? i : 0].to_floats(factor);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) factor[j] += v.weight_offset;
  };

  int stage = 0, turn = 0;
  for (; base < v.rows; base += step) {
    const int64_t row = base + group;
    const int limit = row < v.rows ? own : 0;
    const Ring now(ring, stage);

    // mean
    ptx::cp_async_wait<kStages - 1>();
    float mean[1] = {};
    if constexpr (Rows::kLayer) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (i >= limit) continue;
        float h[kWidth];
        to_float(h, *now.h(i));
#pragma unroll
        for (int j = 0; j < kWidth; ++j) mean[0] = fmaf(h[j], kMeanShare, mean[0]);
      }
      reduction.sum(mean, turn++);
      mean[0] *= v.inverse_count / kMeanShare;
    }

    // sums
    Sums sums;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (i >= limit) continue;
      float h[kWidth], grad[kWidth], factor[kWidth];
      to_float(h, *now.h(i));
      to_float(grad, *now.grad(i));
      factors_of(factor, i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sums.add(h[j] - mean[0], __fmul_rn(grad[j], factor[j]));
    }
    reduction.sum(sums.value, turn++);
    const AddNormFactors factors(v, mean[0], sums);

    // dh and dx, dw and db
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if constexpr (kHoldsWeight) weight[i].keep();
      if (i < limit) {
        float h[kWidth], grad[kWidth], factor[kWidth], d[kWidth];
        to_float(h, *now.h(i));
        to_float(grad, *now.grad(i));
        factors_of(factor, i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float xhat = factors.xhat(h[j]);
          d[j] = factors.dh(xhat, __fmul_rn(grad[j], factor[j]));  // rounded as in the sums
          dw[i][j] = fmaf(grad[j], xhat, dw[i][j]);
          if constexpr (Rows::kLayer) db[i][j] += grad[j];
        }
        if (v.grad_h != nullptr) {
          float grad_h[kWidth];
          to_float(grad_h, *now.grad_h(i));
#pragma unroll
          for (int j = 0; j < kWidth; ++j) d[j] += grad_h[j];
        }
        Vec<H, kWidth> dh;
        from_float(dh, d);
        store<Cache::streaming>(v.dh_row(row) + col(i), dh);
        if (v.dx != nullptr) {
          Vec<T, kWidth> dx;
          v.to_dx(d, row, col(i));
          from_float(dx, d);
          store<Cache::streaming>(v.dx_row(row) + col(i), dx);
        }
      }
      // A ring of one row: what is finished leaves its place to the next row at once.
      if constexpr (kStages == 1) fetch_pack(now, row + step, i);
    }
    if constexpr (kStages == 1) {
      ptx::cp_async_commit();
    } else {
      fetch(stage, row + kStages * step);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  // one partial dw and db per block
  ptx::allow_next_grid();
  const auto write = [&](float (&sums)[kPacks][kWidth], float* partial) {
    if (partial == nullptr) return;
    partial += block * v.cols;
    if constexpr (kShared) {
      constexpr int kRowFloats = Tile::lanes * kPacks * kWidth;
      static_assert(Tile::threads * kPacks * kWidth * sizeof(float) <= Ring::bytes(Tile::threads),
                    "sums share the ring");
      float* shared = reinterpret_cast<float*>(ring);  // [rows of the block, a row's columns]
      ptx::cp_async_wait<0>();
      __syncthreads();  // the ring is free
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; j += 4) {
          *reinterpret_cast<float4*>(&shared[group * kRowFloats + (i * lanes + lane) * kWidth + j]) =
              float4{sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
        }
      }
      __syncthreads();
      for (int i = tid; i < packs * kWidth; i += blockDim.x) {
        float sum = shared[i];
#pragma unroll
        for (int other = 1; other < Tile::rows_per_block; ++other) sum += shared[other * kRowFloats + i];
        partial[i] = sum;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (i >= own) continue;
#pragma unroll
        for (int j = 0; j < kWidth; j += 4) {
          *reinterpret_cast<float4*>(partial + col(i) + j) =
              float4{sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
        }
      }
    }
  };
  write(dw, v.partial_dw);
  if constexpr (Rows::kLayer) write(db, v.partial_db);
}

template <class Rows, class Tile>
void launch_persistent_tile(const AddNormBackwardArgs& a, const Rows& rows, cudaStream_t stream) {
  using Ring = AddNormBackwardRing<Rows, Tile>;
  constexpr auto kernel = &add_norm_backward_persistent_kernel<Rows, Tile>;
  static_assert(Ring::bytes(Tile::threads) <= kCommonRing, "too large a ring for some GPUs");
  LaunchConfig config;
  config.block = dim3(Tile::lanes > 0 ? Tile::threads : row_threads(a.cols / Rows::kWidth, Tile::packs, Tile::threads));
  config.dynamic_smem = Ring::bytes(static_cast<int>(config.block.x));
  const int64_t batches = (a.rows + Tile::rows_per_block - 1) / Tile::rows_per_block;
  const int64_t blocks = std::min({batches, a.most_partials, resident_blocks<kernel, Tile>(config)});
  config.grid = dim3(static_cast<unsigned>(blocks));
  launch<kernel>(config, stream, rows);
  sum_partials<typename Rows::W>(a, blocks, stream);
}

// The first tile that holds the row.
template <class Rows, class... Tile>
void launch_smallest_tile(const AddNormBackwardArgs& a, const Rows& rows, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && a.cols / Rows::kWidth <= Tile::most_packs &&
    (launch_persistent_tile<Rows, Tile>(a, rows, stream), done = true)),
   ...);
}

template <class Tiles>
constexpr int64_t kMostPacksOf = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;

}  // namespace warpsmith
