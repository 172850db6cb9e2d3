// Weights times up to 16 vectors, where rows of weights are contiguous.
//   The ring of skinny_ring_kernel.cuh with tiles of 32 rows or 64, in f32 of 32 to 64, by turns; where those leave
//   blocks idle, in 16 bits even shares in tiles of up to 48 rows or 112, as skinny_ring_deal.h decides. The weights are
//   the left operand of the tensor cores (16 x k), the vectors the right one (k x 8): the other way round, 8 to 15 of 16
//   rows of every product would be padding. f32 keeps to fused multiply-adds, of 8 x 4 results to a thread, or up to
//   8 x 8 in taller tiles.
#pragma once

#include "device/ptx/memory.h"
#include "device/ptx/mma.h"
#include "gemm/cut_sums.cuh"
#include "gemm/packs.cuh"
#include "gemm/skinny_mma_sums.cuh"
#include "gemm/skinny_ring_deal.h"
#include "gemm/skinny_ring_kernel.cuh"
#include "host/occupancy.h"
#include "tile/shared_limits.h"

namespace warpsmith {

// How the lanes of a warp share rows of chunks. Of the values of a slot, any order along k will do as long as weights and
// vectors have the same: chunks are dealt out so that eight lanes that read together meet in no bank.
struct RingMmaLanes {
  static constexpr int steps = 2;
  static constexpr int row(int lane) { return lane / 4; }
  static constexpr int chunk(int lane, int step) { return lane % 4 * 2 + step; }
};

template <int along_k, int rows_>
struct RingFmaLanes {
  static constexpr int rows = rows_, steps = 8 / along_k;
  static constexpr int row(int lane) { return lane / along_k % rows; }
  static constexpr int chunk(int lane, int step) { return lane % along_k * steps + step; }
};

template <class Lanes>
constexpr bool ring_reads_without_conflicts() {
  for (int step = 0; step < Lanes::steps; ++step) {
    for (int lane = 0; lane < kWarp; lane += 8) {
      unsigned banks = 0;
      for (int i = lane; i < lane + 8; ++i) banks |= 1u << ring_place(Lanes::row(i), Lanes::chunk(i, step)) % 8;
      if (banks != 0xff) return false;
    }
  }
  return true;
}

static_assert(ring_reads_without_conflicts<RingMmaLanes>());
static_assert(ring_reads_without_conflicts<RingFmaLanes<2, 4>>() &&
              ring_reads_without_conflicts<RingFmaLanes<4, 4>>() &&
              ring_reads_without_conflicts<RingFmaLanes<8, 4>>() && ring_reads_without_conflicts<RingFmaLanes<2, 8>>());

// The rows x vectors sums of a warp, on the tensor cores for vectors of 16 bits.
template <class W, class X, int rows, int vectors>
class RingSums : public MmaRingSums<rows, vectors> {
  using Base = MmaRingSums<rows, vectors>;
  using Base::kTilesM, Base::kTilesN, Base::sum_;
  static constexpr int kPlanes = sizeof(X) / sizeof(W);

 public:
  __device__ __forceinline__ void add(const uint4* slot) {
    constexpr int kChunks = kRingRowBytes / kChunkBytes;
    const int lane = threadIdx.x % kWarp;
    const int place = ring_place(RingMmaLanes::row(lane), RingMmaLanes::chunk(lane, 0));
#pragma unroll
    for (int step = 0; step < RingMmaLanes::steps; ++step) {
      const auto at = [&](int row) { return slot[row * kChunks + (place ^ step)]; };  // row: a multiple of 8
      uint4 b[kPlanes][kTilesN];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) b[plane][n] = at(rows + plane * vectors + 8 * n);
      }
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
        uint32_t top[4 * kPlanes], bottom[4 * kPlanes];
        convert_weights<W, X>(top, at(16 * m));
        convert_weights<W, X>(bottom, at(16 * m + 8));
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          const int i = 4 * plane;
          const uint32_t first[4] = {top[i], bottom[i], top[i + 1], bottom[i + 1]};
          const uint32_t second[4] = {top[i + 2], bottom[i + 2], top[i + 3], bottom[i + 3]};
#pragma unroll
          for (int n = 0; n < kTilesN; ++n) {
            ptx::mma_m16n8k16<X>(sum_[m][n], first, {b[plane][n].x, b[plane][n].y});
            ptx::mma_m16n8k16<X>(sum_[m][n], second, {b[plane][n].z, b[plane][n].w});
          }
        }
      }
    }
  }
};

// In f32, by fused multiply-adds: lanes share k, rows and vectors. What a lane reads of a slot lies at compile-time
// distances from few places: the instructions around the multiply-adds are what DRAM would wait for.
template <int rows, int vectors>
class RingSums<float, float, rows, vectors> {
  // Vectors of a lane, and groups of lanes for all of them.
  static constexpr int kVectors = rows > kRingRows ? 8 : 4, kGroups = vectors / kVectors;
  static constexpr int kAlongK = kWarp / vectors;
  using Lanes = RingFmaLanes<kAlongK, kWarp / (kAlongK * kGroups)>;
  static constexpr int kRows = rows / Lanes::rows;
  static_assert(kGroups * kVectors == vectors && kRows * Lanes::rows == rows, "every lane has a share");
  static_assert(rows % 8 == 0, "vectors begin where the swizzle does");
  CutSums<kRows, kVectors> sums_;

 public:
  __device__ __forceinline__ void add(const uint4* slot) {
    sums_.begin_slot();
    constexpr int kChunks = kRingRowBytes / kChunkBytes;
    const int lane = threadIdx.x % kWarp, row = Lanes::row(lane), group = lane / (kAlongK * Lanes::rows);
    const int chunk = Lanes::chunk(lane, 0);
    const int w_place = ring_place(row, chunk), x_place = ring_place(rows + group * kVectors, chunk);
    const auto* values = reinterpret_cast<const float4*>(slot);
#pragma unroll
    for (int step = 0; step < Lanes::steps; ++step) {
      float4 x[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) x[v] = values[v * kChunks + (x_place ^ v ^ step)];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float4 w = values[i * Lanes::rows * kChunks + (w_place ^ i * Lanes::rows % kChunks ^ step)];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) sums_.add(i, v, w, x[v]);
      }
    }
  }

  template <int pitch>
  __device__ __forceinline__ void store(float* to) const {
    const int lane = threadIdx.x % kWarp, row = Lanes::row(lane), group = lane / (kAlongK * Lanes::rows);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const float total = warp_reduce<kAlongK>(sums_.total(i, v));
        if (lane % kAlongK == 0) to[(group * kVectors + v) * pitch + i * Lanes::rows + row] = total;
      }
    }
  }
};

// A step of 128 bytes of every row.
template <class W, class X, int rows_, int vectors_>
struct RowsSlot {
  static constexpr int rows = rows_, vectors = vectors_;
  static constexpr int row_chunks = kRingRowBytes / kChunkBytes, depth = row_chunks * kPack<W>;
  // Rows of a slot: those of the weights, then the vectors. Where a chunk of weights meets several chunks of a vector,
  // each of them lies in a plane of its own, in the place that the weights have among theirs.
  static constexpr int planes = sizeof(X) / sizeof(W);
  static constexpr int chunks = (rows + vectors * planes) * row_chunks;
  using Vector = X;
  using Sums = RingSums<W, X, rows, vectors>;

  __device__ __forceinline__ static void clear(uint4* slot, int count) {
    for (int i = threadIdx.x % kWarp; i < vectors * planes * row_chunks; i += kWarp) {
      const int row = i / row_chunks;
      if (row % vectors >= count) slot[ring_place(rows + row, i % row_chunks)] = {};
    }
  }

  __device__ __forceinline__ static void fetch(uint4* slot, const SkinnyArgs& a, const RingRows& tile, int step) {
    fetch_by([](auto... copy) { ptx::cp_async_zfill(copy...); }, slot, a, tile, step);
  }

  // Weights by `copy(to, from, valid)`.
  template <class Copy>
  __device__ __forceinline__ static void fetch_by(Copy copy, uint4* slot, const SkinnyArgs& a, const RingRows& tile,
                                                  int step) {
    constexpr int kRowsAtOnce = kWarp / row_chunks;
    const int lane = threadIdx.x % kWarp, row = lane / row_chunks, chunk = lane % row_chunks;
    const int64_t k = int64_t{step} * depth + chunk * kPack<W>, first_row = tile.first + row;
    const W* weights = static_cast<const W*>(a.a) + first_row * a.a_row + k;
    const int place = ring_place(row, chunk);
    const auto to = [&](int i) { return slot + i * row_chunks + (place ^ i % row_chunks); };
    if (tile.first + rows <= tile.end && (int64_t{step} + 1) * depth <= a.k) {
#pragma unroll
      for (int i = 0; i < rows; i += kRowsAtOnce) {
        copy(to(i), reinterpret_cast<const uint4*>(weights), true);
        weights += kRowsAtOnce * a.a_row;
      }
    } else {
#pragma unroll
      for (int i = 0; i < rows; i += kRowsAtOnce) {
        copy(to(i), reinterpret_cast<const uint4*>(weights + i * a.a_row), k < a.k && first_row + i < tile.end);
      }
    }
#pragma unroll
    for (int i = 0; i < vectors; i += kRowsAtOnce) {
      const int vector = i + row;
      if (vector >= a.vectors) continue;
      const X* x = static_cast<const X*>(a.x) + vector * a.x_row + k;
#pragma unroll
      for (int plane = 0; plane < planes; ++plane) {
        ptx::cp_async_zfill(slot + ring_place(rows + plane * vectors + vector, chunk),
                            reinterpret_cast<const uint4*>(x + plane * kPack<X>), k < a.k);
      }
    }
  }
};

// The same where weights are so many that none of them stay in L2: they shall not push out the vectors, which every tile
// reads again.
template <class W, class X, int rows, int vectors>
struct PassingRowsSlot : RowsSlot<W, X, rows, vectors> {
  __device__ __forceinline__ static void fetch(uint4* slot, const SkinnyArgs& a, const RingRows& tile, int step) {
    const uint64_t policy = ptx::policy_evict_first();
    const auto copy = [&](uint4* to, const uint4* from, bool valid) { ptx::cp_async_zfill(to, from, valid, policy); };
    RowsSlot<W, X, rows, vectors>::fetch_by(copy, slot, a, tile, step);
  }
};

namespace {

// More than 8 vectors of 16 bits, on a GPU with room for any ring. ring_deal is about weights of 16 bits; others go by
// turns.
template <class W, class X, class Large, class Args>
void launch_skinny_ring_dealt(const Args& a, int sm_count, cudaStream_t stream) {
  constexpr int kVectors = Large::vectors;
  constexpr bool kWide = kVectors * Large::Slot::planes > 16;
  using Tall = SkinnyRingTile<RowsSlot<W, X, 2 * kRingRows, kVectors>, 4, kWide ? 4 : 5>;
  static_assert(Large::shared_bytes <= kSharedOfSm90 && Tall::shared_bytes <= kSharedOfSm90);
  const int blocks = std::max(1, sm_count / a.splits);
  RingDeal deal = whole_tiles(a.m, blocks);
  if constexpr (std::is_same_v<W, X>) {
    using Even = EvenRingTile<RowsSlot<W, X, kEvenRows, kVectors>, 8, 3>;
    using TallEven = EvenRingTile<PassingRowsSlot<W, X, kTallEvenRows, kVectors>, 4, 3>;
    static_assert(Even::shared_bytes <= kSharedOfSm90 && TallEven::shared_bytes <= kSharedOfSm90);
    deal = ring_deal(a.m, a.k * static_cast<int64_t>(sizeof(W)), blocks);
    if (deal == RingDeal::even) return launch_skinny_ring_tile<Even>(a, sm_count, stream);
    if (deal == RingDeal::tall_even) return launch_skinny_ring_tile<TallEven>(a, sm_count, stream);
  }
  if (deal == RingDeal::tall_tiles) return launch_skinny_ring_tile<Tall>(a, sm_count, stream);
  launch_skinny_ring_tile<Large>(a, sm_count, stream);
}

// The same in f32, where multiply-adds take longer than the weights: tiles of the height that leaves least of them idle.
template <class Large, class Args>
void launch_skinny_ring_floats(const Args& a, int sm_count, cudaStream_t stream) {
  const auto launch_tile = [&]<int rows, int stages>() {
    using Tile = SkinnyRingTile<RowsSlot<float, float, rows, Large::vectors>, Large::warps, stages>;
    static_assert(Tile::shared_bytes <= kSharedOfSm90);
    launch_skinny_ring_tile<Tile>(a, sm_count, stream);
  };
  switch (float_ring_rows(a.m, std::max(1, sm_count / a.splits))) {
    case 48:
      return launch_tile.template operator()<48, 3>();
    case 56:
      return launch_tile.template operator()<56, 2>();
    case 64:
      return launch_tile.template operator()<64, 2>();
    default:
      return launch_skinny_ring_tile<Large>(a, sm_count, stream);
  }
}

// The largest ring that the GPU has room for, in one block per multiprocessor if it is a large one.
template <class W, class X, int vectors, class Args>
void launch_skinny_ring_of(const Args& a, int sm_count, cudaStream_t stream) {
  using Slot = RowsSlot<W, X, kRingRows, vectors>;
  constexpr bool kWide = vectors * Slot::planes > 16;  // slots so large that fewer must do
  using Large = SkinnyRingTile<Slot, 8, kWide ? 3 : 4>;
  using Small = SkinnyRingTile<Slot, 4, kWide ? 2 : 3>;
  static_assert(Large::shared_bytes <= kSharedOfSm90 && Small::shared_bytes <= kSharedOfSm89);
  const int limit = block_smem_limit();
  const bool chooses = vectors == 16 && limit >= kSharedOfSm90;  // among tiles, as there is room for any
  if (limit < Large::shared_bytes) {
    const int blocks = limit >= 2 * Small::shared_bytes ? 2 * sm_count : sm_count;
    launch_skinny_ring_tile<Small>(a, blocks, stream);
  } else if (!chooses) {
    launch_skinny_ring_tile<Large>(a, sm_count, stream);
  } else if constexpr (vectors == 16 && std::is_same_v<X, float>) {
    launch_skinny_ring_floats<Large>(a, sm_count, stream);
  } else if constexpr (vectors == 16) {
    launch_skinny_ring_dealt<W, X, Large>(a, sm_count, stream);
  }
  if (a.partial != nullptr) launch_skinny_sum<X>(a, stream);
}

// W: of the weights. X: of vectors and results, f16 or bf16, or f32 like W.
template <class W, class X, class Args>
void launch_skinny_ring(const Args& a, int sm_count, cudaStream_t stream) {
  if constexpr (std::is_same_v<X, float>) {
    if (a.vectors <= 4) return launch_skinny_ring_of<W, X, 4>(a, sm_count, stream);
  }
  if (a.vectors <= 8) return launch_skinny_ring_of<W, X, 8>(a, sm_count, stream);
  launch_skinny_ring_of<W, X, 16>(a, sm_count, stream);
}

}  // namespace
}  // namespace warpsmith
