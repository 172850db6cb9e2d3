// Kernels of `thread_tile` and `thread_tile_pack…`: 256 threads, 8 x 8 neighbouring values each, and tiles of the
// operands in shared memory as they lie in global memory. They differ in how a thread loads.
#pragma once

#include "gemm/gemm.h"
#include "gemm/thread_tile.cuh"
#include "host/launch.h"

namespace warpsmith {

struct RowTile {
  static constexpr int side = 16, threads = side * side, own = 8, size = side * own;
};

// Blocks that a multiprocessor holds, by their registers. Before sm_90, eight f32 values a load need a few more than two
// blocks leave.
template <class Acc, class Load>
constexpr int row_tile_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if (sizeof(Acc) == 4 && Load::width == 8) return 1;
#endif
  return 2;
}

// Load: `width` values that one thread brings at a time, of each operand, and the instructions that do.
template <class T, class Acc, class Load>
__global__ void __launch_bounds__(RowTile::threads, row_tile_blocks<Acc, Load>())
    matmul_thread_tile_kernel(const GemmArgs p) {
  constexpr int kOwn = RowTile::own, kSize = RowTile::size, kChunkWidth = kChunk<Acc>;
  constexpr int kWidth = Load::width, kDepth = RowTile::threads * kWidth / kSize;
  static_assert(kDepth % kChunkWidth == 0, "a is read in chunks along k");
  __shared__ alignas(16) Acc sA[kSize][kDepth];
  __shared__ alignas(16) Acc sB[kDepth][kSize];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tiles_n = ceil_div(p.n, kSize);
  const int64_t first_row = blockIdx.x / tiles_n * kSize, first_col = blockIdx.x % tiles_n * kSize;
  const int a_row = thread / (kDepth / kWidth), a_k = thread % (kDepth / kWidth) * kWidth;
  const int b_k = thread / (kSize / kWidth), b_col = thread % (kSize / kWidth) * kWidth;
  const T* a = static_cast<const T*>(p.a.data) + (first_row + a_row) * p.a.ld + a_k;
  const T* b = static_cast<const T*>(p.b.data) + b_k * p.b.ld + first_col + b_col;
  // Which k of a slice this thread brings; past the slice where its row or column is outside.
  const int a_from = first_row + a_row < p.m ? a_k : kDepth, b_from = first_col + b_col < p.n ? b_k : kDepth;
  const int row = thread / RowTile::side * kOwn, col = thread % RowTile::side * kOwn;

  static_assert(kMostTerms % kDepth == 0, "sums end where slices do");
  constexpr int kMostSlices = static_cast<int>(kMostTerms) / kDepth;
  const int slices = static_cast<int>(ceil_div(p.k, kDepth));
  int slice = 0;
  do {
    Sums<Acc, kOwn, kOwn> sums;
    while (slice < slices) {
      const int depth = static_cast<int>(min(p.k - int64_t{slice} * kDepth, int64_t{kDepth}));
      Load::template pass<T, Acc>(&sA[a_row][a_k], a, a_from < depth);
      Load::template pass<T, Acc>(&sB[b_k][b_col], b, b_from < depth);
      a += kDepth;
      b += kDepth * p.b.ld;
      __syncthreads();
#pragma unroll(kDepth / kChunkWidth <= 2 ? 2 : 1)  // unrolled further, it outgrows the registers
      for (int k = 0; k < kDepth; k += kChunkWidth) {
        Vec<Acc, kChunkWidth> left[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) load(left[i], &sA[row + i][k]);
#pragma unroll
        for (int c = 0; c < kChunkWidth; ++c) {
          Acc column[kOwn], across[kOwn];
          load_chunks(across, &sB[k + c][col], kChunkWidth);
#pragma unroll
          for (int i = 0; i < kOwn; ++i) column[i] = left[i][c];
          sums.add_products(column, across);
        }
      }
      __syncthreads();  // the next slice overwrites this one
      ++slice;
      if (kCutsSums<T> && slice % kMostSlices == 0) break;
    }

    unsigned block = blockIdx.x;
    asm volatile("" : "+r"(block));  // or else addresses are computed, and kept, before the multiplications
    const int64_t first_row = block / tiles_n * kSize, first_col = block % tiles_n * kSize;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t to_row = first_row + row + i;
      if (to_row >= p.m) break;
      T* const d = static_cast<T*>(p.d) + to_row * p.n;
      constexpr int kStore = Load::width < kPack<T> ? Load::width : kPack<T>;
#pragma unroll
      for (int j = 0; j < kOwn; j += kStore) {
        const int64_t to_col = first_col + col + j;
        if (to_col < p.n) store_sums<T, kStore>(d + to_col, sums, i, j, kCutsSums<T> && slice > kMostSlices);
      }
    }
  } while (slice < slices);
}

// Zeros where not `inside`; converted, if shared memory holds f32.
template <class T, class Acc, int width>
__device__ __forceinline__ void put(Acc* shared, const Vec<T, width>& values) {
  if constexpr (std::is_same_v<T, Acc>) {
    store(shared, values);
  } else {
    constexpr int kPart = width < 4 ? width : 4;
    float wide[width];
    to_float(wide, values);
#pragma unroll
    for (int i = 0; i < width; i += kPart) {
      Vec<float, kPart> part;
#pragma unroll
      for (int c = 0; c < kPart; ++c) part[c] = wide[i + c];
      store(shared + i, part);
    }
  }
}

// `width` values in loads of `each`.
template <int width_, int each>
struct VectorLoad {
  static constexpr int width = width_;

  template <class T, class Acc>
  __device__ static void pass(Acc* shared, const T* from, bool inside) {
#pragma unroll
    for (int i = 0; i < width; i += each) {
      Vec<T, each> values = {};
      if (inside) load(values, from + i);
      put<T, Acc>(shared + i, values);
    }
  }
};

template <class T, class Acc, class Load>
void launch_row_tiles(const GemmArgs& p, cudaStream_t stream) {
  const int64_t tiles = ceil_div(p.m, RowTile::size) * ceil_div(p.n, RowTile::size);
  launch<&matmul_thread_tile_kernel<T, Acc, Load>>({static_cast<unsigned>(tiles), RowTile::threads}, stream, p);
}

}  // namespace warpsmith
