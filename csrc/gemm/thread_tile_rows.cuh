// Kernels of `thread_tile` and `thread_tile_pack…`: 256 threads, 8 x 8 values each, and tiles of the operands in shared
// memory as they lie in global memory. They differ in how a thread loads.
#pragma once

#include "gemm/gemm.h"
#include "gemm/thread_tile.cuh"
#include "host/launch.h"
#include "host/min_max.h"
#include "tile/thread_again.cuh"

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

// `width` values in loads of `each`, whose products are added as `left` says.
template <int width_, int each_, Left left_ = Left::halves>
struct VectorLoad {
  static constexpr int width = width_, each = each_;
  static constexpr Walk walk = Walk::rows;
  static constexpr Left left = left_;
};

// The values that a thread brings of an operand, on their way through registers.
template <class T, class Load>
struct HeldValues {
  static constexpr int width = Load::width, each = Load::each;
  static_assert(width % each == 0 && each <= 8, "whole loads");
  Vec<T, each> value[width / each];

  // The first `inside`, a multiple of 4; zeros for the others.
  __device__ __forceinline__ void load_from(const T* from, int inside) {
#pragma unroll
    for (int i = 0; i < width / each; ++i) {
      value[i] = {};
      if (i * each < inside) load(value[i], from + i * each);
    }
  }

  // In accesses of up to 16 bytes; converted, if shared memory holds f32.
  template <class Acc>
  __device__ __forceinline__ void store_to(Acc* shared) const {
    constexpr int kPart = std::min(width, kChunk<Acc>);
#pragma unroll
    for (int first = 0; first < width; first += kPart) {
      Vec<Acc, kPart> part;
#pragma unroll
      for (int c = 0; c < kPart; ++c) {
        const T x = value[(first + c) / each][(first + c) % each];
        if constexpr (std::is_same_v<T, Acc>) {
          part[c] = x;
        } else {
          part[c] = to_float(x);
        }
      }
      store(shared + first, part);
    }
  }
};

// Load: what one thread brings of each operand for a slice of k, a VectorLoad.
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
  // From which k of a slice on this thread brings values; past the slice where its row or column is outside.
  const int a_from = first_row + a_row < p.m ? a_k : kDepth, b_from = first_col + b_col < p.n ? b_k : kDepth;
  // How many of its line of b: lines, of four and four values, may end between its loads.
  constexpr bool kMayEnd = kWidth > std::max(4, Load::each);
  const int b_inside = kMayEnd ? static_cast<int>(min(p.n - first_col - b_col, int64_t{kWidth})) : kWidth;

  const auto fetch = [&](int slice, auto& a_held, auto& b_held) {
    const int depth = static_cast<int>(min(p.k - int64_t{slice} * kDepth, int64_t{kDepth}));
    a_held.load_from(a, depth - a_from);
    b_held.load_from(b, b_from < depth ? b_inside : 0);
    a += kDepth;
    b += kDepth * p.b.ld;
  };
  HeldValues<T, Load> a_held, b_held;
  fetch(0, a_held, b_held);

  static_assert(kMostTerms % kDepth == 0, "sums end where slices do");
  constexpr int kMostSlices = static_cast<int>(kMostTerms) / kDepth;
  const int slices = static_cast<int>(ceil_div(p.k, kDepth));
  // Of a warp, neighbouring lanes have alternate rows of 16 and the same columns, which lie in chunks of 16 bytes beside
  // those of other lanes: shared memory answers half a warp at once.
  const auto row_of = [](int thread) { return thread / kWarp * (2 * kOwn) + thread % 2; };
  const auto col_of = [](int thread) { return thread % kWarp / 2 * kChunkWidth; };
  constexpr int kRowStep = 2, kColStep = RowTile::side * kChunkWidth;
  const int row = row_of(thread), col = col_of(thread);
  int slice = 0;
  do {
    Sums<Acc, kOwn, kOwn> sums;
    while (slice < slices) {
      a_held.store_to(&sA[a_row][a_k]);
      b_held.store_to(&sB[b_k][b_col]);
      __syncthreads();
      fetch(++slice, a_held, b_held);
      // Few k of eight rows at a time, where sums leave few registers.
      constexpr int kRead = sizeof(Acc) == 4 ? 2 : kChunkWidth;
#pragma unroll
      for (int k = 0; k < kDepth; k += kRead) {
        Vec<Acc, kRead> left[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) load(left[i], &sA[row + kRowStep * i][k]);
#pragma unroll
        for (int c = 0; c < kRead; ++c) {
          Acc column[kOwn], across[kOwn];
          load_chunks(across, &sB[k + c][col], kColStep);
#pragma unroll
          for (int i = 0; i < kOwn; ++i) column[i] = left[i][c];
          sums.template add_products<Load>(column, across);
        }
      }
      __syncthreads();  // the next slice overwrites this one
      if (kCutsSums<T> && slice % kMostSlices == 0) break;
    }

    unsigned block = blockIdx.x;
    asm volatile("" : "+r"(block));  // or else addresses are computed, and kept, before the multiplications
    const int again = thread_again();
    const int64_t to_first = block / tiles_n * kSize + row_of(again), to_col = block % tiles_n * kSize + col_of(again);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t to_row = to_first + kRowStep * i;
      if (to_row >= p.m) break;
      T* const d = static_cast<T*>(p.d) + to_row * p.n;
      constexpr int kStore = Load::each < 4 ? 4 : std::min(Load::each, kChunkWidth);
#pragma unroll
      for (int j = 0; j < kOwn; j += kStore) {
        const int64_t own_col = to_col + j / kChunkWidth * kColStep + j % kChunkWidth;
        if (own_col < p.n) store_sums<T, kStore>(d + own_col, sums, i, j, kCutsSums<T> && slice > kMostSlices);
      }
    }
  } while (slice < slices);
}

template <class T, class Acc, class Load>
void launch_row_tiles(const GemmArgs& p, cudaStream_t stream) {
  const int64_t tiles = ceil_div(p.m, RowTile::size) * ceil_div(p.n, RowTile::size);
  launch<&matmul_thread_tile_kernel<T, Acc, Load>>({static_cast<unsigned>(tiles), RowTile::threads}, stream, p);
}

}  // namespace warpsmith
