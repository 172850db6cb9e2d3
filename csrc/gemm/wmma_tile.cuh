// A warp's share of a tile, multiplied through CUDA's own fragments (nvcuda::wmma) from operands in shared memory.
//   Which lane holds which value of a fragment is not documented, so that sums leave through shared memory too.
// CUDA C++ Programming Guide, "Warp Matrix Functions":
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#warp-matrix-functions
#pragma once

#include <mma.h>

#include <cstdint>
#include <type_traits>

#include "device/convert.h"
#include "device/ptx/wmma.h"
#include "gemm/gemm.h"
#include "tile/operand_tile.h"
#include "tile/thread_again.cuh"
#include "tile/warp_mma.cuh"

namespace warpsmith {

// The instruction's m and n; k is 16.
struct Wmma16x16 {
  static constexpr int m = 16, n = 16;
};
struct Wmma32x8 {
  static constexpr int m = 32, n = 8;
};

// One instruction's sums as a row-major matrix in shared memory.
template <class Acc>
struct alignas(32) WmmaPatch {
  static constexpr int values = 256;  // either shape
  Acc value[values];
};

// Writes the instruction's sums to the product, from m, n on: 8 values a lane, in columns that are multiples of 8.
template <class T, class Acc, class Shape, class Fragment>
__device__ __forceinline__ void store_fragment(const GemmArgs& p, const Fragment& sums, WmmaPatch<Acc>& patch,
                                               int64_t m, int64_t n) {
  nvcuda::wmma::store_matrix_sync(patch.value, sums, Shape::n, nvcuda::wmma::mem_row_major);
  __syncwarp();
  const int first = static_cast<int>(threadIdx.x) % kWarp * 8;
  const int64_t row = m + first / Shape::n, col = n + first % Shape::n;
  if (row < p.m && col < p.n) {
    Vec<T, 8> out;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = from_float<T>(to_float(patch.value[first + i]));
    store(static_cast<T*>(p.d) + row * p.n + col, out);
  }
  __syncwarp();  // the next fragment overwrites the patch
}

// bf16, which load_matrix_sync reads by words, and fragments of 8 columns, which lie on 16 bytes where it asks for 32.
template <class Fragment, class T>
__device__ __forceinline__ void load_fragment(Fragment& to, const T* from, unsigned stride) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<Fragment, ptx::fragments::HalfB32x8>) {
    ptx::wmma_load(to, from, stride);
  } else {
    nvcuda::wmma::load_matrix_sync(to, from, stride);
  }
}

// a along k, b along n.
template <class T, class Acc, class Tile, class TileA, class TileB, class Shape = Wmma16x16>
class WmmaSums {
  static constexpr int kTilesM = Share<Tile>::wm / Shape::m, kTilesN = Share<Tile>::wn / Shape::n;

 public:
  __device__ __forceinline__ WmmaSums() {
#pragma unroll
    for (auto& row : sums_) {
#pragma unroll
      for (auto& sum : row) nvcuda::wmma::fill_fragment(sum, from_float<Acc>(0.0f));
    }
  }

  // One stage of the operands. Calls between(part, parts) when fragments are on their way, before they are multiplied.
  template <class Between>
  __device__ __forceinline__ void add(const Stage<T, TileA, TileB>& stage, Between&& between) {
    namespace wmma = nvcuda::wmma;
#pragma unroll
    for (int k = 0; k < Tile::bk; k += 16) {
      wmma::fragment<wmma::matrix_a, Shape::m, Shape::n, 16, T, wmma::row_major> a[kTilesM];
      wmma::fragment<wmma::matrix_b, Shape::m, Shape::n, 16, T, wmma::row_major> b[kTilesN];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        load_fragment(a[i], stage.a + TileA::at(place_.m + i * Shape::m, k), TileA::stride);
      }
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
        load_fragment(b[j], stage.b + TileB::at(k, place_.n + j * Shape::n), TileB::stride);
      }
      between(k / 16, Tile::bk / 16);
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) wmma::mma_sync(sums_[i][j], a[i], b[j], sums_[i][j]);
      }
    }
  }

  __device__ __forceinline__ void add(const Stage<T, TileA, TileB>& stage) {
    add(stage, [](int, int) {});
  }

  // The product alone, of the tile that starts at m, n. `patches`: one for each warp.
  __device__ __forceinline__ void store(const GemmArgs& p, WmmaPatch<Acc>* patches, int64_t m, int64_t n) const {
    const int thread = thread_again();
    const WarpPlace<Tile> place(thread);
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
        store_fragment<T, Acc, Shape>(p, sums_[i][j], patches[thread / kWarp], m + place.m + i * Shape::m,
                                      n + place.n + j * Shape::n);
      }
    }
  }

 private:
  WarpPlace<Tile> place_;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, Shape::m, Shape::n, 16, Acc> sums_[kTilesM][kTilesN];
};

}  // namespace warpsmith
