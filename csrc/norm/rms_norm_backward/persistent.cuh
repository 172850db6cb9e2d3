// The persistent kernel behind `registers` and `cluster`: a block, or a cluster of them, walks over rows, keeping its
// slice of the weight and of dw in registers, while the rows to come arrive in a ring in shared memory.
#pragma once

#include <tuple>

#include "device/cluster.h"
#include "device/ptx/cp_async.h"
#include "row/persistent.h"
#include "norm/rms_norm_backward/row.cuh"

namespace warpsmith {

// threads of a block (at most) | threads that share a row, 0: the block or cluster, cut to what the row needs |
// 128-bit packs of a row that a thread holds | rows in the ring | blocks per multiprocessor | blocks that share a row
template <int threads_, int lanes_, int packs_, int stages_, int min_blocks_, int cluster_ = 1>
struct BackwardTile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, stages = stages_;
  static constexpr int min_blocks = min_blocks_, cluster = cluster_;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
  static constexpr int64_t most_packs = int64_t{cluster} * (lanes > 0 ? lanes : threads) * packs;
  static_assert(lanes == 0 || cluster == 1, "rows that share a warp are short");

  static constexpr int ring_bytes(int block_threads) { return stages * 2 * packs * block_threads * 16; }
  using OneStage = BackwardTile<threads_, lanes_, packs_, 1, min_blocks_, cluster_>;
};

// Bytes: what every GPU from sm_80 on grants a block for its ring, and what the kernel declares besides.
inline constexpr int kCommonSmem = 96 * 1024, kStaticSmem = 1024;

// One row of the ring, as a thread sees it: its packs of x, then those of grad.
template <class Tile>
__device__ __forceinline__ int ring_slot(int stage, int tensor, int pack) {
  return ((stage * 2 + tensor) * Tile::packs + pack) * blockDim.x + threadIdx.x;
}

// The sums of the row over everyone who shares it.
template <class Tile>
struct RowReduction {
  static constexpr int kWarps = Tile::threads / kWarp;
  RowSums partial[2][Tile::cluster > 1 ? Tile::cluster * kWarps : kWarp];  // [buffer, block of the cluster * warp]
};

template <class T, class W, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    rms_norm_backward_persistent_kernel([[maybe_unused]] const RmsNormBackwardRows<T, W> v) {
#if defined(__CUDA_ARCH__)
  constexpr int kPacks = Tile::packs, kStages = Tile::stages, kCluster = Tile::cluster, kWidth = kPack<T>;
  constexpr bool kShared = Tile::lanes > 0;  // several rows in a block
  extern __shared__ uint4 ring[];            // [stages, x and grad, packs, threads]; a thread reads its own copies only
  __shared__ RowReduction<Tile> reduction;

  const int tid = threadIdx.x;
  const int lanes = kShared ? Tile::lanes : blockDim.x;
  const int lane = kShared ? tid % lanes : tid;
  const int group = kShared ? tid / lanes : 0;
  int rank = 0;
#if WARPSMITH_HAS_CLUSTERS
  if constexpr (kCluster > 1) rank = cluster_rank();
#endif
  const int packs = static_cast<int>(v.cols / kWidth);
  const int slice = (packs + kCluster - 1) / kCluster;
  const int own = min(packs - rank * slice, slice);  // packs of this block, none at the end of a short row
  const int64_t col = int64_t{rank} * slice * kWidth;
  const int64_t block = blockIdx.x / kCluster;
  const int64_t step = int64_t{gridDim.x / kCluster} * Tile::rows_per_block;

  const auto fetch = [&](int stage, int64_t row) {
    if (row < v.rows) {
      const auto* x = reinterpret_cast<const uint4*>(v.x_row(row) + col);
      const auto* grad = reinterpret_cast<const uint4*>(v.grad_row(row) + col);
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const int pack = i * lanes + lane;
        if (pack < own) {
          ptx::cp_async(&ring[ring_slot<Tile>(stage, 0, i)], x + pack);
          ptx::cp_async(&ring[ring_slot<Tile>(stage, 1, i)], grad + pack);
        }
      }
    }
    ptx::cp_async_commit();
  };

  int64_t base = block * Tile::rows_per_block;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch(stage, base + group + stage * step);
  WeightPack<W, kWidth> weight[kPacks];
  // Few clusters fit the machine, so each adds up many rows: f32 keeps what rounding loses (Kahan 1965).
  constexpr bool kCompensated = std::is_same_v<T, float> && kCluster > 1 && kPacks <= 4;
  float dw[kPacks][kWidth];
  [[maybe_unused]] float lost[kCompensated ? kPacks : 1][kWidth] = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = i * lanes + lane;
    if (pack < own) weight[i].load_from(v.weight, col + int64_t{pack} * kWidth);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) dw[i][j] = 0.0f;
  }
#if WARPSMITH_HAS_CLUSTERS
  if constexpr (kCluster > 1) cluster_sync();  // every block has started before its shared memory is written
#endif

  int stage = 0, buffer = 0;
  for (; base < v.rows; base += step) {
    const int64_t row = base + group;
    const int limit = row < v.rows ? own : 0;

    // both sums
    ptx::cp_async_wait<kStages - 1>();
    RowSums sums;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (i * lanes + lane >= limit) continue;
      const uint4 raw_x = ring[ring_slot<Tile>(stage, 0, i)], raw_grad = ring[ring_slot<Tile>(stage, 1, i)];
      float x[kWidth], grad[kWidth], factor[kWidth];
      to_float(x, reinterpret_cast<const Pack<T>&>(raw_x));
      to_float(grad, reinterpret_cast<const Pack<T>&>(raw_grad));
      weight[i].to_floats(factor);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sums.square = fmaf(x[j], x[j], sums.square);
        sums.product = fmaf(grad[j] * factor[j], x[j], sums.product);
      }
    }
    if constexpr (kShared) {
      sums = warp_sums<Tile::lanes>(sums);
    } else if constexpr (kCluster == 1) {
      sums = block_sums(sums, reduction.partial[buffer]);
    } else {
#if WARPSMITH_HAS_CLUSTERS
      const int warps = blockDim.x / kWarp, in_warp = tid % kWarp;
      sums = warp_sums(sums);
      if (in_warp < kCluster) {
        RowSums& mine = reduction.partial[buffer][rank * warps + tid / kWarp];
        store_remote(&mine.square, in_warp, sums.square);
        store_remote(&mine.product, in_warp, sums.product);
      }
      __syncwarp();
      cluster_sync();
      sums = {};
      for (int i = in_warp; i < kCluster * warps; i += kWarp) sums = AddSums{}(sums, reduction.partial[buffer][i]);
      sums = warp_sums(sums);
#endif
    }
    const RowFactors factors = row_factors(sums, static_cast<float>(v.cols), v.eps);

    // dx and dw
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int pack = i * lanes + lane;
      weight[i].keep();
      if (pack >= limit) continue;
      const uint4 raw_x = ring[ring_slot<Tile>(stage, 0, i)], raw_grad = ring[ring_slot<Tile>(stage, 1, i)];
      float x[kWidth], grad[kWidth], factor[kWidth], dx[kWidth];
      to_float(x, reinterpret_cast<const Pack<T>&>(raw_x));
      to_float(grad, reinterpret_cast<const Pack<T>&>(raw_grad));
      weight[i].to_floats(factor);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float xhat = x[j] * factors.scale;
        dx[j] = factors.scale * fmaf(-xhat, factors.mean, grad[j] * factor[j]);
        if constexpr (kCompensated) {
          const float term = fmaf(grad[j], xhat, -lost[i][j]), sum = dw[i][j] + term;
          lost[i][j] = (sum - dw[i][j]) - term;
          dw[i][j] = sum;
        } else {
          dw[i][j] = fmaf(grad[j], xhat, dw[i][j]);
        }
      }
      Pack<T> out;
      from_float(out, dx);
      store<Cache::streaming>(v.dx_row(row) + col + int64_t{pack} * kWidth, out);
    }
    fetch(stage, row + kStages * step);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    buffer ^= 1;  // another warp or block may be one row ahead, never two
  }
  if (v.partial == nullptr) return;

  // one partial dw per block or cluster
  float* partial = v.partial + block * v.cols;
  if constexpr (kShared) {
    ptx::cp_async_wait<0>();
    __syncthreads();                                 // the ring is free
    float* shared = reinterpret_cast<float*>(ring);  // [rows of the block, a row's columns]
    constexpr int kRowFloats = Tile::lanes * kPacks * kWidth;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; j += 4) {
        *reinterpret_cast<float4*>(&shared[group * kRowFloats + (i * lanes + lane) * kWidth + j]) =
            float4{dw[i][j], dw[i][j + 1], dw[i][j + 2], dw[i][j + 3]};
      }
    }
    __syncthreads();
    for (int i = tid; i < packs * kWidth; i += blockDim.x) {
      float sum = shared[i];
#pragma unroll
      for (int row = 1; row < Tile::rows_per_block; ++row) sum += shared[row * kRowFloats + i];
      partial[i] = sum;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int pack = i * lanes + lane;
      if (pack >= own) continue;
#pragma unroll
      for (int j = 0; j < kWidth; j += 4) {
        *reinterpret_cast<float4*>(partial + col + int64_t{pack} * kWidth + j) =
            float4{dw[i][j], dw[i][j + 1], dw[i][j + 2], dw[i][j + 3]};
      }
    }
  }
#endif
}

template <class T, class W, class Tile>
void launch_backward_tile(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  constexpr auto kernel = &rms_norm_backward_persistent_kernel<T, W, Tile>;
  static_assert(Tile::lanes == 0 || sizeof(T) * Tile::stages * 2 >= sizeof(float), "dw must fit where the ring was");
  const int64_t slice = (a.cols / kPack<T> + Tile::cluster - 1) / Tile::cluster;
  LaunchConfig config;
  config.block = dim3(Tile::lanes > 0 ? Tile::threads : row_threads(slice, Tile::packs, Tile::threads));
  config.dynamic_smem = Tile::ring_bytes(static_cast<int>(config.block.x));
  config.cluster = Tile::cluster;
  if constexpr (Tile::cluster == 1 && Tile::stages > 1 && Tile::ring_bytes(Tile::threads) > kCommonSmem) {
    if (config.dynamic_smem > kCommonSmem && config.dynamic_smem + kStaticSmem > block_smem_limit()) {
      return launch_backward_tile<T, W, typename Tile::OneStage>(a, stream);
    }
  }
  const int64_t batches = (a.rows + Tile::rows_per_block - 1) / Tile::rows_per_block;
  const int64_t blocks = std::min({batches, a.most_partials, static_cast<int64_t>(resident_clusters<kernel>(config))});
  config.grid = dim3(static_cast<unsigned>(blocks * Tile::cluster));
  launch<kernel>(config, stream, RmsNormBackwardRows<T, W>(a));
  sum_partials<W>(a, blocks, stream);
}

// The first tile that holds the row.
template <class T, class W, class... Tile>
void launch_smallest_tile(const RmsNormBackwardArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && a.cols / kPack<T> <= Tile::most_packs && (launch_backward_tile<T, W, Tile>(a, stream), done = true)), ...);
}

template <class Tiles>
constexpr int64_t kMostPacksOf = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;

}  // namespace warpsmith
