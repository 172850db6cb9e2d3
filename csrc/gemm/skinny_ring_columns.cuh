// Weights times up to 16 vectors, where columns of weights are contiguous: x w with w [k, n] row-major.
//   The ring of skinny_ring_kernel.cuh with tiles of 64 rows of weights, in f32 of 32, which are 128 neighbouring bytes of
//   every column. In 16 bits ldmatrix transposes them on their way to the tensor cores, whose left operand they are.
#pragma once

#include "device/ptx/mma.h"
#include "gemm/column_slices.h"
#include "gemm/cut_sums.cuh"
#include "gemm/skinny_mma_sums.cuh"
#include "gemm/skinny_ring_kernel.cuh"
#include "host/occupancy.h"
#include "tile/shared_limits.h"

namespace warpsmith {

// What a warp takes at a time: 32 columns of a tile, and the values of the vectors that they meet.
template <class T, int vectors_>
struct ColumnsPlaces {
  static constexpr int rows = kRingRowBytes / static_cast<int>(sizeof(T)), vectors = vectors_, depth = 32;
  static constexpr int pack = kChunkBytes / static_cast<int>(sizeof(T));
  static constexpr int column_chunks = rows / pack, vector_chunks = depth / pack;
  static constexpr int weight_chunks = depth * column_chunks, chunks = weight_chunks + vectors * vector_chunks;
  // ldmatrix wants chunks in an order of its own; lanes that read neighbouring chunks do not.
  static constexpr bool swizzles = sizeof(T) == 2;
  static_assert(chunks % 8 == 0, "slots that swizzle alike");

  // Where chunk `chunk` of a column of weights lies: [depth, column_chunks].
  __host__ __device__ static constexpr int weight_place(int column, int chunk) {
    return swizzles ? ring_place(column, chunk) : column * column_chunks + chunk;
  }
  // Where chunk `chunk` of a vector lies, behind them: [vectors, vector_chunks].
  __host__ __device__ static constexpr int vector_place(int vector, int chunk) {
    const int at = vector * vector_chunks + chunk;
    return weight_chunks + (swizzles ? TileSwizzle<uint4, vector_chunks>{}(at) : at);
  }
};

// The sums of a warp, on the tensor cores for values of 16 bits.
template <class T, int vectors>
class ColumnsSums : public MmaRingSums<ColumnsPlaces<T, vectors>::rows, vectors> {
  using Places = ColumnsPlaces<T, vectors>;
  using Base = MmaRingSums<Places::rows, vectors>;
  using Base::kTilesM, Base::kTilesN, Base::sum_;
  static_assert(conflict_free<uint4, vectors, Places::vector_chunks>(TileSwizzle<uint4, Places::vector_chunks>{}));

 public:
  __device__ __forceinline__ void add(const uint4* slot) {
    const int lane = threadIdx.x % kWarp;
    uint32_t x[kTilesN][4];
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) ptx::ldmatrix(x[n], slot + Places::vector_place(8 * n + lane % 8, lane / 8));
#pragma unroll
    for (int k = 0; k < Places::depth / 16; ++k) {
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
        uint32_t weights[4];
        const int column = 16 * k + lane / 16 * 8 + lane % 8, chunk = 2 * m + lane / 8 % 2;
        ptx::ldmatrix_trans(weights, slot + Places::weight_place(column, chunk));
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) {
          ptx::mma_m16n8k16<T>(sum_[m][n], weights, {x[n][2 * k], x[n][2 * k + 1]});
        }
      }
    }
  }
};

// In f32, by fused multiply-adds: of four rows of weights and all vectors to a lane. As many lanes have the same rows as
// share a slot's k.
template <int vectors>
class ColumnsSums<float, vectors> {
  using Places = ColumnsPlaces<float, vectors>;
  static constexpr int kLanes = Places::column_chunks, kAlongK = kWarp / kLanes;
  static constexpr int kSteps = Places::vector_chunks / kAlongK;
  CutSums<Places::pack, vectors> sums_;

 public:
  __device__ __forceinline__ void add(const uint4* slot) {
    sums_.begin_slot();
    const int lane = threadIdx.x % kWarp, chunk = lane % kLanes;
    const auto* values = reinterpret_cast<const float4*>(slot);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = lane / kLanes * kSteps + step;  // chunk of the vectors
      float4 w[4];                                   // of columns, each of four rows
#pragma unroll
      for (int c = 0; c < 4; ++c) w[c] = values[Places::weight_place(4 * at + c, chunk)];
      // [pack], each of four columns
      const float4 rows[Places::pack] = {{w[0].x, w[1].x, w[2].x, w[3].x},
                                         {w[0].y, w[1].y, w[2].y, w[3].y},
                                         {w[0].z, w[1].z, w[2].z, w[3].z},
                                         {w[0].w, w[1].w, w[2].w, w[3].w}};
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        const float4 x = values[Places::vector_place(v, at)];
#pragma unroll
        for (int i = 0; i < Places::pack; ++i) sums_.add(i, v, rows[i], x);
      }
    }
  }

  // to: [vectors, pitch]
  template <int pitch>
  __device__ __forceinline__ void store(float* to) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      float total[Places::pack];
#pragma unroll
      for (int i = 0; i < Places::pack; ++i) {
        total[i] = sums_.total(i, v);
#pragma unroll
        for (int distance = kLanes; distance < kWarp; distance *= 2) {
          total[i] += __shfl_xor_sync(kAllLanes, total[i], distance);
        }
      }
      if (lane < kLanes) {
        *reinterpret_cast<float4*>(to + v * pitch + lane * Places::pack) = {total[0], total[1], total[2], total[3]};
      }
    }
  }
};

template <class T, int vectors_>
struct ColumnsSlot : ColumnsPlaces<T, vectors_> {
  using Places = ColumnsPlaces<T, vectors_>;
  using Places::vectors, Places::depth, Places::pack, Places::column_chunks, Places::vector_chunks;
  using Vector = T;
  using Sums = ColumnsSums<T, vectors>;

  __device__ __forceinline__ static void clear(uint4* slot, int count) {
    for (int i = threadIdx.x % kWarp; i < vectors * vector_chunks; i += kWarp) {
      if (i / vector_chunks >= count) slot[Places::vector_place(i / vector_chunks, i % vector_chunks)] = {};
    }
  }

  __device__ __forceinline__ static void fetch(uint4* slot, const SkinnyArgs& a, const RingRows& tile, int step) {
    constexpr int kColumnsAtOnce = kWarp / column_chunks, kVectorsAtOnce = kWarp / vector_chunks;
    const int lane = threadIdx.x % kWarp;
    const int column = lane / column_chunks, chunk = lane % column_chunks;
    const int64_t row = tile.first + chunk * pack, first_k = int64_t{step} * depth;
    const T* weights = static_cast<const T*>(a.a) + (first_k + column) * a.a_row + row;
#pragma unroll
    for (int i = 0; i < depth; i += kColumnsAtOnce) {
      ptx::cp_async_zfill(slot + Places::weight_place(i + column, chunk),
                          reinterpret_cast<const uint4*>(weights + i * a.a_row),
                          row < tile.end && first_k + column + i < a.k);
    }
    const int64_t k = first_k + lane % vector_chunks * pack;
#pragma unroll
    for (int i = 0; i < vectors; i += kVectorsAtOnce) {
      const int vector = i + lane / vector_chunks;
      if (vector >= a.vectors) continue;
      const T* x = static_cast<const T*>(a.x) + vector * a.x_row + k;
      ptx::cp_async_zfill(slot + Places::vector_place(vector, lane % vector_chunks), reinterpret_cast<const uint4*>(x),
                          k < a.k);
    }
  }
};

namespace {

// The larger ring where the GPU has room for it, with one block per multiprocessor.
template <class T, int vectors, class Args>
void launch_skinny_columns_of(const Args& a, int sm_count, cudaStream_t stream) {
  using Slot = ColumnsSlot<T, vectors>;
  using Large = SkinnyRingTile<Slot, 8, 4>;
  using Small = SkinnyRingTile<Slot, 4, 3>;
  static_assert(Large::shared_bytes <= kSharedOfSm90 && Small::shared_bytes <= kSharedOfSm89);
  constexpr int kRunBytes = 64;  // of a column, at least, which are what DRAM reads at a time
  using Filled = FilledRingTile<Slot, Large::warps, Large::stages, kRunBytes / static_cast<int>(sizeof(T))>;
  const int limit = block_smem_limit();
  if (limit < Large::shared_bytes) {
    launch_skinny_ring_tile<Small>(a, limit >= 2 * Small::shared_bytes ? 2 * sm_count : sm_count, stream);
  } else if (!skinny_columns_fill(a.m, sizeof(T), a.splits, sm_count)) {
    launch_skinny_ring_tile<Large>(a, sm_count, stream);
  } else if constexpr (sizeof(T) == 2) {
    launch_skinny_ring_tile<Filled>(a, sm_count, stream);
  }
  if (a.partial != nullptr) launch_skinny_sum<T>(a, stream);
}

// Columns of weights aligned to 16 bytes and whole packs long, `a_row` apart.
template <class T, class Args>
void launch_skinny_columns(const Args& a, int sm_count, cudaStream_t stream) {
  if constexpr (sizeof(T) == 4) {
    if (a.vectors <= 4) return launch_skinny_columns_of<T, 4>(a, sm_count, stream);
  }
  if (a.vectors <= 8) return launch_skinny_columns_of<T, 8>(a, sm_count, stream);
  launch_skinny_columns_of<T, 16>(a, sm_count, stream);
}

}  // namespace
}  // namespace warpsmith
