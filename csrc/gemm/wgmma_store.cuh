// The sums of a warpgroup to memory: pairs straight from registers, or whole lines through shared memory by the copy engine.
#pragma once

#include "device/convert.h"
#include "device/ptx/barrier.h"
#include "device/ptx/store_matrix.h"
#include "device/ptx/tensor_store.h"
#include "gemm/wgmma.h"
#include "gemm/wgmma_tile.cuh"

namespace warpsmith {

#if WARPSMITH_HAS_WGMMA

template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  Vec<T, 2> pair;
  from_float(pair, {low, high});
  return reinterpret_cast<const uint32_t&>(pair);
}

// Rows from `m` and columns from `n` on of d [rows, cols], whose rows are packs of 16 bytes. Four lanes write 16 bytes of a
// row.
template <class Config>
__device__ __forceinline__ void store_pairs(typename Config::T* d, const typename Config::Sums& sums, int64_t m, int n,
                                            int64_t rows, int cols) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp % 4;
#pragma unroll
  for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t row = m + i * kWgmmaRows + warp * 16 + below * 8 + lane / 4;
      if (row >= rows) continue;
      typename Config::T* to = d + row * cols;
#pragma unroll
      for (int j = 0; j < Config::bn / 8; ++j) {
        const int col = n + 8 * j;
        if (col >= cols) break;
        const float* pair = sums[i] + 4 * j + 2 * below;
        *reinterpret_cast<uint32_t*>(to + col + lane % 4 * 2) = pack_pair<typename Config::T>(pair[0], pair[1]);
      }
    }
  }
}

#endif

// What becomes of sums has
//   Shared                              what a warpgroup needs of shared memory
//   by_map, map(p)                      whether the copy engine stores, and its map then
//   store(sums, tiles, map, m, n)       of rows from m and columns from n on
//   finish()                            once, behind the last tile

template <class Config>
struct StorePairs {
  struct Shared {};
  static constexpr bool by_map = false;

  __device__ explicit StorePairs(Shared&) {}
  __device__ __forceinline__ void store(const typename Config::Sums& sums, const WgmmaTiles& tiles, const CUtensorMap&,
                                        int m, int n) {
#if WARPSMITH_HAS_WGMMA
    store_pairs<Config>(static_cast<typename Config::T*>(tiles.d), sums, m, n, tiles.m, tiles.n);
#endif
  }
  __device__ __forceinline__ void finish() {}
};

// Through boxes of 64 x 64 in shared memory, which the copy engine stores while the warpgroup fills the next one, or goes on
// to multiply.
template <class Config>
class StoreBoxes {
  using T = typename Config::T;
  static constexpr int kCols = 64, kBoxes = 2, kLine = kCols * static_cast<int>(sizeof(T));
  static constexpr int kEach = Config::strips * (Config::bn / kCols);  // of a tile
  static_assert(kLine == 128 && Config::bn % kCols == 0, "whole boxes");

 public:
  struct Shared {
    alignas(1024) char boxes[kBoxes][kWgmmaRows * kLine];  // [64, 64], swizzled
  };
  static constexpr bool by_map = true;

  static CUtensorMap map(const GemmArgs& p) {
    return tensor_map(MappedMatrix{.data = p.d,
                                   .type = tensor_map_type(p.dtype),
                                   .rows = p.m,
                                   .cols = p.n,
                                   .ld = p.n,
                                   .box_rows = kWgmmaRows,
                                   .box_cols = kCols});
  }

  __device__ explicit StoreBoxes(Shared& shared) : shared_(shared) {}

#if WARPSMITH_HAS_WGMMA
  __device__ __forceinline__ void store(const typename Config::Sums& sums, const WgmmaTiles&, const CUtensorMap& map,
                                        int m, int n) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp % 4;
    // stmatrix: lanes name the rows of the upper left 8 x 8 of 16 x 16, then lower left, upper right, lower right.
    const int row = warp * 16 + lane % 16, chunk = lane / 16;
#pragma unroll
    for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
      for (int box = 0; box < Config::bn / kCols; ++box) {
        char* to = shared_.boxes[(first_ + i * (Config::bn / kCols) + box) % kBoxes];
        if (leads()) ptx::stores_wait_read<kBoxes - 1>();
        meet();
#pragma unroll
        for (int j = 0; j < kCols / 8; j += 2) {
          uint32_t words[4];
#pragma unroll
          for (int word = 0; word < 4; ++word) {
            const float* pair = sums[i] + (box * kCols / 8 + j) * 4 + word * 2;
            words[word] = pack_pair<T>(pair[0], pair[1]);
          }
          ptx::stmatrix(to + row * kLine + ((j + chunk) ^ (row % 8)) * 16, words);
        }
        ptx::fence_proxy_async();
        meet();
        if (leads()) {
          ptx::tensor_store(&map, {m + i * kWgmmaRows, n + box * kCols}, to);
          ptx::stores_commit();
        }
      }
    }
    first_ = (first_ + kEach) % kBoxes;
  }

  // The block's shared memory must last until it has been read.
  __device__ __forceinline__ void finish() {
    if (leads()) ptx::stores_wait_read<0>();
  }
#endif

 private:
  __device__ __forceinline__ static bool leads() { return threadIdx.x % kWarpgroup == 0; }
  // Of the warpgroup's threads; its number is that of its barrier.
  __device__ __forceinline__ static void meet() {
    ptx::sync_warps(static_cast<int>(threadIdx.x) / kWarpgroup + 1, kWarpgroup);
  }

  Shared& shared_;
  int first_ = 0;  // the box that comes next
};

}  // namespace warpsmith
