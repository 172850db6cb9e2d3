// The rung `peeled_registers`: rows that begin anywhere, held in the registers of a block or of a cluster of blocks and read
// once. A pack of values goes through a thread as it lies in memory; the weights of its columns, which lie between other
// borders, are put together from the packs that they straddle. See row/peeled_registers.cuh.
#pragma once

#include "device/cluster.h"
#include "device/start_early.h"
#include "norm/forward/row.cuh"
#include "row/peeled_registers.cuh"
#include "row/straddle.h"

namespace warpsmith {

// y of x, of one dtype.
template <class Row>
struct PeeledNorm : Row {
  using Row::kLayer;
  using T = typename Row::Value;
  static constexpr int kWidth = Row::kWidth;

  explicit PeeledNorm(const Row& row) : Row(row) {}

  // Of a pack's columns from `col` on, of which the row need not have `all`.
  __device__ __forceinline__ void finish(float (&values)[kWidth], int col, bool all,
                                         const RowStatistics& statistics) const {
    float weights[kWidth], biases[kWidth];
    read(weights, this->weight, col, all, 1.0f);
    if constexpr (kLayer) read(biases, this->bias, col, all, 0.0f);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[j] = Row::Norm::apply(values[j], statistics, weights[j], kLayer ? biases[j] : 0.0f);
    }
  }

 private:
  __device__ __forceinline__ void read(float (&to)[kWidth], const void* from, int col, bool all, float absent) const {
    if (from == nullptr) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) to[j] = absent;
    } else if (sizeof(T) == 2 && this->wide_weights) {
      read_as(to, static_cast<const float*>(from), col, all);
    } else {
      read_as(to, static_cast<const T*>(from), col, all);
    }
  }

  template <class W>
  __device__ __forceinline__ void read_as(float (&to)[kWidth], const W* from, int col, bool all) const {
    constexpr int kPart = kPack<W>, kParts = kWidth / kPart;
    const int phase = phase_of(from + col);
    const auto cols = static_cast<int>(this->cols);
    // The last pack that they straddle must lie within the weight, or it might reach beyond what is allocated.
    if (all && (phase == 0 || col - phase + (kParts + 1) * kPart <= cols)) {
      const auto* packs = reinterpret_cast<const uint4*>(from + col - phase);
      uint4 low = packs[0];
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const uint4 high = phase == 0 && i == kParts - 1 ? uint4{} : packs[i + 1];
        unpack<W>(reinterpret_cast<float (&)[kPart]>(to[i * kPart]), straddling_pack<W>(low, high, phase));
        low = high;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        to[j] = static_cast<unsigned>(col + j) < static_cast<unsigned>(cols) ? to_float(from[col + j]) : 0.0f;
      }
    }
  }
};

// Sums of the row, each over everyone who shares it. Each instance serves once.
template <class Tile, int sums>
struct PeeledSums {
  static constexpr int kThreads = Tile::shape.threads, kCluster = Tile::shape.cluster;
  std::conditional_t<(kCluster > 1), ClusterReduceStorage<kThreads, kCluster>, float[kWarp]> storage[sums];
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

template <class Tile, int sums>
__device__ __forceinline__ float peeled_sum(float value, PeeledSums<Tile, sums>& shared, int which) {
  if constexpr (Tile::shape.cluster > 1) {
    return cluster_sum<Tile::shape.threads, Tile::shape.cluster>(value, shared.storage[which]);
  } else {
    return block_sum(value, shared.storage[which]);
  }
}

#endif

// Row: NormRow.
template <class Row, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads, Tile::shape.min_blocks)
    norm_peeled_registers_kernel([[maybe_unused]] const PeeledNorm<Row> row) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  start_early();
  using T = typename Row::Value;
  constexpr int kPacks = Tile::shape.packs, kCluster = Tile::shape.cluster;
  __shared__ PeeledSums<Tile, Row::kLayer ? 2 : 1> shared;
  const int warps = blockDim.x / kWarp, rank = kCluster > 1 ? cluster_rank() : 0;
  const int64_t r = blockIdx.x / kCluster;
  if constexpr (kCluster > 1) {
    cluster_sum_prepare(shared.storage[0]);
    if constexpr (Row::kLayer) cluster_sum_prepare(shared.storage[1]);
    cluster_arrive_relaxed();
  }
  const uint32_t zero = detail::unknown_zero(row);

  // load
  const T* x_row = row.x_row(r);  // [cols]
  PeeledShare<T, Tile> share(x_row, static_cast<int>(row.cols), rank * warps + static_cast<int>(threadIdx.x) / kWarp);
  uint4 x[kPacks];
  share.load(x, x_row, Row::padding(), row.load_policy());
  const T before = share.load_before(x_row, from_float<T>(0.0f));
  share.forget(zero);

  // sums
  if constexpr (kCluster > 1) cluster_wait();  // every block expects
  const bool any = share.any();
  RowStatistics statistics{};
  const auto keep = [&] {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) keep_packed(x[i], zero);
  };
  float sum = 0.0f;
  if constexpr (Row::kLayer) {
    const float share_of_mean = row.inverse_count;
    if (any) sum = share.template add_up<false>(x, before, [&](float v) { return v * share_of_mean; });
    statistics.mean = peeled_sum(sum, shared, 0);
    keep();
    sum = 0.0f;
    if (any) {
      sum = share.template add_up<false, true>(x, before, [&](float v) {
        const float d = v - statistics.mean;
        return d * d;
      });
    }
    statistics.rstd = reciprocal_rms(peeled_sum(sum, shared, 1), row.inverse_count, row.eps);
  } else {
    if (any) sum = share.template add_up<false>(x, before, [](float v) { return v * v; });
    statistics.rstd = reciprocal_rms(peeled_sum(sum, shared, 0), row.inverse_count, row.eps);
  }
  keep();

  // normalise
  if (rank == 0 && threadIdx.x == 0) row.keep(r, statistics);
  if (!any) return;
  share.store(static_cast<T*>(row.y) + r * row.cols, x,
              [&](float (&values)[Row::kWidth], int col, bool all) { row.finish(values, col, all, statistics); });
#endif
}

// Small blocks, each at another point of its row, hide each other's waits.
struct PeeledNormTiles {
  static constexpr PeeledTile tiles[] = {
      {.threads = 320, .packs = 4, .min_blocks = 3, .cluster = 1},
      {.threads = 320, .packs = 10, .min_blocks = 2, .cluster = 4},
  };
};
inline constexpr int64_t kMostPeeledRowBytes = kMostPeeledBytes<TileAt<PeeledNormTiles, 1>>;

template <class Args>
void launch_norm_peeled(const Args& a, cudaStream_t stream) {
  visit_norm<OfX>(a, [&]<class Row>() {
    const int64_t packs = peeled_packs(row_bytes(a));
    with_first_tile(TilesOf<PeeledNormTiles>{}, packs, [&]<class Tile>() {
      constexpr PeeledTile tile = Tile::shape;
      const LaunchConfig config{
          .grid = static_cast<unsigned>(a.rows * tile.cluster),
          .block = row_threads((packs + tile.cluster - 1) / tile.cluster, tile.packs, tile.threads),
          .cluster = tile.cluster,
          .early = true};
      launch<&norm_peeled_registers_kernel<Row, Tile>>(config, stream, PeeledNorm<Row>(Row(a)));
    });
  });
}

template <class Args>
const char* needs_peeled(const Args& a) {
  const bool alike = same_phase(a.x, a.y, a.rows, a.x_stride, a.cols, size_of(a.dtype));
  return unmet({alike ? nullptr : "needs rows of x that lie like those of y between 16-byte borders", needs_f32_sums(a),
                needs_row_bytes<kMostPeeledRowBytes>(a.cols, a.dtype),
                a.rows <= kMostRows / 4 ? nullptr : "needs at most 2^29 - 1 rows"});
}

// No GPU has run it yet.
template <class Args>
bool suits_peeled(const Args&) {
  return false;
}

}  // namespace warpsmith
