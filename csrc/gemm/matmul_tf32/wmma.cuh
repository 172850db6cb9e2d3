// What the WMMA rungs share: 16 x 16 products of eight values of k, their rounding and their writing, and the kernel of
// those that bring tiles through a ring.
#pragma once

#include <mma.h>

#include "device/block_order.h"
#include "device/pipeline.h"
#include "device/ptx/copy.h"
#include "gemm/matmul_tf32/matmul_tf32.h"
#include "host/launch.h"

namespace warpsmith {

namespace wmma = nvcuda::wmma;

inline constexpr int kWmmaRows = 16, kWmmaDepth = 8;

using WmmaA = wmma::fragment<wmma::matrix_a, kWmmaRows, kWmmaRows, kWmmaDepth, wmma::precision::tf32, wmma::row_major>;
using WmmaB = wmma::fragment<wmma::matrix_b, kWmmaRows, kWmmaRows, kWmmaDepth, wmma::precision::tf32, wmma::row_major>;
using WmmaSums = wmma::fragment<wmma::accumulator, kWmmaRows, kWmmaRows, kWmmaDepth, float>;

// Each lane its own part.
template <class Fragment>
__device__ __forceinline__ void round_to_tf32(Fragment& x) {
#pragma unroll
  for (int i = 0; i < x.num_elements; ++i) x.x[i] = wmma::__float_to_tf32(x.x[i]);
}

// Each lane its own part.
__device__ __forceinline__ void add(WmmaSums& to, const WmmaSums& x) {
#pragma unroll
  for (int i = 0; i < x.num_elements; ++i) to.x[i] += x.x[i];
}

// Writes a 16 x 16 tile of the product as far as it is inside. By way of `shared` [16, 16], of this warp: which lane holds
// which element of a fragment is not specified.
__device__ __forceinline__ void write_tile(float* d, const GemmArgs& p, int64_t first_row, int64_t first_col,
                                           const WmmaSums& sums, float* shared) {
  wmma::store_matrix_sync(shared, sums, kWmmaRows, wmma::mem_row_major);
  __syncwarp();
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = lane; i < kWmmaRows * kWmmaRows; i += 32) {
    const int64_t row = first_row + i / kWmmaRows, col = first_col + i % kWmmaRows;
    if (row < p.m && col < p.n) d[row * p.n + col] = shared[i];
  }
  __syncwarp();
}

// --- tiles through a ring -----------------------------------------------------------------------------------------

// 4 x 2 warps, each of 2 x 4 products of 16 x 16. Rows are padded by 16 bytes: rows of a whole number of 128 bytes would
// lie in the same banks.
struct WmmaTile {
  static constexpr int bm = 128, bn = 128, bk = 16, wm = 32, wn = 64, stages = 4;
  static constexpr int warps_m = bm / wm, warps_n = bn / wn, threads = 32 * warps_m * warps_n;
  static constexpr int pad = 4, pitch_a = bk + pad, pitch_b = bn + pad;
  static constexpr int size_a = bm * pitch_a, stage = size_a + bk * pitch_b;  // values
  static constexpr int shared = stages * stage * static_cast<int>(sizeof(float));
};

static_assert(WmmaTile::threads / 32 * kWmmaRows * kWmmaRows <= WmmaTile::stage, "sums are written by way of a slot");

// Brings rows [first_row, first_row + rows) of columns [first_col, first_col + cols) of a row-major matrix.
template <int rows, int cols>
__device__ __forceinline__ void copy_rows(float* to, int pitch, const Matrix& from, int64_t first_row,
                                          int64_t first_col, int64_t all_rows, int64_t all_cols) {
  constexpr int kChunk = 4, kChunks = cols / kChunk;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks; i += WmmaTile::threads) {
    const int row = i / kChunks, col = i % kChunks * kChunk;
    const bool valid = first_row + row < all_rows && first_col + col < all_cols;
    const float* source = static_cast<const float*>(from.data) + (first_row + row) * from.ld + first_col + col;
    ptx::cp_async_zfill(reinterpret_cast<uint4*>(to + row * pitch + col), reinterpret_cast<const uint4*>(source),
                        valid);
  }
}

// `BlockOrder::tile(index, tiles_m, tiles_n)` is the tile of a block.
template <class BlockOrder>
__global__ void __launch_bounds__(WmmaTile::threads)
    matmul_tf32_wmma_ring_kernel(const Tf32Args p, const int64_t tiles_m, const int64_t tiles_n) {
  using Tile = WmmaTile;
  extern __shared__ __align__(32) uint4 shared[];
  float* ring = reinterpret_cast<float*>(shared);  // [stages, tile of a and tile of b]
  const TileCoord tile = BlockOrder::tile(blockIdx.x, tiles_m, tiles_n);
  const int64_t block_row = tile.m * Tile::bm, block_col = tile.n * Tile::bn;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp % Tile::warps_m * Tile::wm, warp_col = warp / Tile::warps_m * Tile::wn;
  const auto copy_tile = [&](int slot, int64_t k) {
    float* to = ring + slot * Tile::stage;
    copy_rows<Tile::bm, Tile::bk>(to, Tile::pitch_a, p.a, block_row, k, p.m, p.k);
    copy_rows<Tile::bk, Tile::bn>(to + Tile::size_a, Tile::pitch_b, p.b, k, block_col, p.k, p.n);
    ptx::cp_async_commit();
  };

  // fill the ring, but for one slot
  RingSlot<Tile::stages> filled, used;
  for (; filled.slot < Tile::stages - 1; filled.advance()) copy_tile(filled.slot, int64_t{filled.slot} * Tile::bk);

  constexpr int kRows = Tile::wm / kWmmaRows, kCols = Tile::wn / kWmmaRows;
  WmmaSums sums[kRows][kCols], joined[kRows][kCols];
  const auto for_each_sum = [](auto&& what) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) what(i, j);
    }
  };
  for_each_sum([&](int i, int j) { wmma::fill_fragment(joined[i][j], 0.0f); });
  for (int64_t first = 0; first < p.k; first += kTensorCoreDepth) {
    for_each_sum([&](int i, int j) { wmma::fill_fragment(sums[i][j], 0.0f); });
    const int64_t end = min(first + kTensorCoreDepth, p.k);
    for (int64_t k = first; k < end; k += Tile::bk) {
      ptx::cp_async_wait<Tile::stages - 2>();
      __syncthreads();  // the tile is there, and the one before it is no longer read
      copy_tile(filled.slot, k + (Tile::stages - 1) * Tile::bk);
      const float* sA = ring + used.slot * Tile::stage + warp_row * Tile::pitch_a;
      const float* sB = ring + used.slot * Tile::stage + Tile::size_a + warp_col;
#pragma unroll
      for (int step = 0; step < Tile::bk; step += kWmmaDepth) {
        WmmaA rA[kRows];
        WmmaB rB[kCols];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          wmma::load_matrix_sync(rA[i], sA + i * kWmmaRows * Tile::pitch_a + step, Tile::pitch_a);
          round_to_tf32(rA[i]);
        }
#pragma unroll
        for (int j = 0; j < kCols; ++j) {
          wmma::load_matrix_sync(rB[j], sB + step * Tile::pitch_b + j * kWmmaRows, Tile::pitch_b);
          round_to_tf32(rB[j]);
        }
        for_each_sum([&](int i, int j) { wmma::mma_sync(sums[i][j], rA[i], rB[j], sums[i][j]); });
      }
      filled.advance();
      used.advance();
    }
    for_each_sum([&](int i, int j) { add(joined[i][j], sums[i][j]); });
  }

  // write, by way of the slot that was read last: the last copies went elsewhere
  __syncthreads();
  const int last = used.slot == 0 ? Tile::stages - 1 : used.slot - 1;
  float* own = ring + last * Tile::stage + warp * kWmmaRows * kWmmaRows;
  for_each_sum([&](int i, int j) {
    write_tile(static_cast<float*>(p.d), p, block_row + warp_row + i * kWmmaRows, block_col + warp_col + j * kWmmaRows,
               joined[i][j], own);
  });
}

inline const char* wmma_ring_takes(const Tf32Args& p) {
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_row_major(p)) return reason;
  return needs_packs_16(p);
}

template <class BlockOrder>
void launch_wmma_ring(const Tf32Args& p, cudaStream_t stream) {
  const int64_t tiles_m = ceil_div(p.m, WmmaTile::bm), tiles_n = ceil_div(p.n, WmmaTile::bn);
  const LaunchConfig config{static_cast<unsigned>(tiles_m * tiles_n), WmmaTile::threads, WmmaTile::shared};
  launch<&matmul_tf32_wmma_ring_kernel<BlockOrder>>(config, stream, p, tiles_m, tiles_n);
}

}  // namespace warpsmith
