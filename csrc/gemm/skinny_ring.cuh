// Weights times up to 16 vectors, the weights streamed through shared memory.
//   Each warp fills a ring of its own with copies that need no registers, so that far more is under way than registers
//   hold, and no warp waits for another before the end of a tile. A tile is 32 rows or 64; the warps of a block share its k, and
//   the ring runs on from one tile to the next, so that DRAM has work while sums are added up. The weights are the left
//   operand of the tensor cores (16 x k), the vectors the right one (k x 8): the other way round, 8 to 15 of 16 rows of
//   every product would be padding. f32 keeps to fused multiply-adds, of 8 x 4 results to a thread.
#pragma once

#include "device/pipeline.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/cp_async_zfill.h"
#include "device/ptx/mma.h"
#include "device/swizzle.h"
#include "device/warp.h"
#include "gemm/packs.cuh"
#include "gemm/skinny_sum.cuh"
#include "host/launch.h"
#include "row/persistent.h"

namespace warpsmith {

// rows of weights | vectors of the call, rounded up | bytes of a value of x over those of a weight
template <int rows_, int vectors_, int planes_>
struct SkinnyRingShape {
  static constexpr int rows = rows_, vectors = vectors_, planes = planes_;
};

template <class Shape, int warps_, int stages_>
struct SkinnyRingTile : Shape {
  using Shape::planes, Shape::rows, Shape::vectors;
  static constexpr int warps = warps_, stages = stages_;
  static constexpr int threads = warps * kWarp;
  static constexpr int chunks = kRingRowBytes / kChunkBytes;  // of a row, in one slot of a ring
  // Rows of a slot: those of the weights, then the vectors. Where a chunk of weights meets several chunks of a vector,
  // each of them lies in a plane of its own, in the place that the weights have among theirs.
  static constexpr int slot_rows = rows + vectors * planes;
  static constexpr int slot = slot_rows * chunks;
  static constexpr int pitch = rows + 4;  // of the warps' sums, against bank conflicts
  static constexpr int ring_bytes = warps * stages * slot * kChunkBytes;
  static constexpr int shared_bytes = ring_bytes + warps * vectors * pitch * static_cast<int>(sizeof(float));
};

// Where chunk `chunk` of row `row` of a slot lies.
__host__ __device__ constexpr int ring_place(int row, int chunk) {
  constexpr int kChunks = kRingRowBytes / kChunkBytes;
  return TileSwizzle<uint4, kChunks>{}(row * kChunks + chunk);
}

// How the lanes of a warp share rows of chunks. Of the values of a slot, any order along k will do as long as weights and
// vectors have the same: chunks are dealt out so that eight lanes that read together meet in no bank.
struct RingMmaLanes {
  static constexpr int steps = 2;
  static constexpr int row(int lane) { return lane / 4; }
  static constexpr int chunk(int lane, int step) { return lane % 4 * 2 + step; }
};

template <int along_k>
struct RingFmaLanes {
  static constexpr int rows = 4, steps = 8 / along_k;
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
static_assert(ring_reads_without_conflicts<RingFmaLanes<2>>() && ring_reads_without_conflicts<RingFmaLanes<4>>() &&
              ring_reads_without_conflicts<RingFmaLanes<8>>());

// The rows x vectors sums of a warp, on the tensor cores for vectors of 16 bits.
template <class W, class X, int rows, int vectors>
class RingSums {
  static constexpr int kTilesM = rows / 16, kTilesN = vectors / 8, kPlanes = sizeof(X) / sizeof(W);
  static_assert(vectors % 8 == 0, "columns come in eights");
  float sum_[kTilesM][kTilesN][4]{};

 public:
  __device__ __forceinline__ void add(const uint4* slot) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < RingMmaLanes::steps; ++step) {
      const int row = RingMmaLanes::row(lane), chunk = RingMmaLanes::chunk(lane, step);
      uint4 b[kPlanes][kTilesN];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) {
          b[plane][n] = slot[ring_place(rows + plane * vectors + 8 * n + row, chunk)];
        }
      }
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
        uint32_t top[4 * kPlanes], bottom[4 * kPlanes];
        convert_weights<W, X>(top, slot[ring_place(16 * m + row, chunk)]);
        convert_weights<W, X>(bottom, slot[ring_place(16 * m + 8 + row, chunk)]);
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

  // to: [vectors, pitch]
  template <int pitch>
  __device__ __forceinline__ void store(float* to) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to[(8 * n + lane % 4 * 2 + i % 2) * pitch + 16 * m + lane / 4 + i / 2 * 8] = sum_[m][n][i];
        }
      }
    }
  }
};

// In f32, by fused multiply-adds: lanes share k, rows and vectors.
template <int rows, int vectors>
class RingSums<float, float, rows, vectors> {
  static constexpr int kVectors = 4,
                       kGroups = vectors / kVectors;  // vectors of a lane, groups of lanes for all of them
  static constexpr int kAlongK = 8 / kGroups;
  using Lanes = RingFmaLanes<kAlongK>;
  static constexpr int kRows = rows / Lanes::rows;
  static_assert(kAlongK * Lanes::rows * kGroups == kWarp && kGroups * kVectors == vectors, "every lane has a share");
  float sum_[kRows][kVectors]{};

 public:
  __device__ __forceinline__ void add(const uint4* slot) {
    const int lane = threadIdx.x % kWarp, row = Lanes::row(lane), group = lane / (kAlongK * Lanes::rows);
    const auto* values = reinterpret_cast<const float4*>(slot);
#pragma unroll
    for (int step = 0; step < Lanes::steps; ++step) {
      const int chunk = Lanes::chunk(lane, step);
      float4 x[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) x[v] = values[ring_place(rows + group * kVectors + v, chunk)];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float4 w = values[ring_place(i * Lanes::rows + row, chunk)];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          float& sum = sum_[i][v];
          sum = fmaf(w.x, x[v].x, sum);
          sum = fmaf(w.y, x[v].y, sum);
          sum = fmaf(w.z, x[v].z, sum);
          sum = fmaf(w.w, x[v].w, sum);
        }
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
        const float total = warp_reduce<kAlongK>(sum_[i][v]);
        if (lane % kAlongK == 0) to[(group * kVectors + v) * pitch + i * Lanes::rows + row] = total;
      }
    }
  }
};

namespace {

template <class W, class X, class Tile, class Args>
__global__ void __launch_bounds__(Tile::threads, 1) skinny_ring_kernel(const Args a) {
  extern __shared__ __align__(128) uint4 shared[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint4* ring = shared + warp * Tile::stages * Tile::slot;                            // [stages, slot]
  float* sums = reinterpret_cast<float*>(shared) + Tile::ring_bytes / sizeof(float);  // [warps, vectors, pitch]

  // this block's slice of k, in slots; those of a tile are dealt out to the warps
  const int64_t packs = a.k / kPack<W>, split = blockIdx.y;
  const int64_t slots = (packs + Tile::chunks - 1) / Tile::chunks;
  const int begin = static_cast<int>(slots * split / a.splits) + warp;
  const int end = static_cast<int>(slots * (split + 1) / a.splits);
  const int64_t tiles = (a.m + Tile::rows - 1) / Tile::rows;

  // vectors that there are not are zeros, once and for all
  for (int stage = 0; stage < Tile::stages; ++stage) {
    for (int i = lane; i < (Tile::slot_rows - Tile::rows) * Tile::chunks; i += kWarp) {
      const int row = i / Tile::chunks;
      if (row % Tile::vectors < a.vectors) continue;
      ring[stage * Tile::slot + ring_place(Tile::rows + row, i % Tile::chunks)] = {};
    }
  }

  // copies ahead of the products, tile by tile
  constexpr int kRowsAtOnce = kWarp / Tile::chunks;
  const int copy_row = lane / Tile::chunks, copy_chunk = lane % Tile::chunks;
  int64_t next_tile = begin < end ? blockIdx.x : tiles;
  int next = begin;
  RingSlot<Tile::stages> fill;
  const auto fetch = [&] {
    if (next_tile < tiles) {
      uint4* slot = ring + fill.slot * Tile::slot;
      const int64_t pack = int64_t{next} * Tile::chunks + copy_chunk;
      const int64_t first_row = next_tile * Tile::rows + copy_row;
      const W* weights = static_cast<const W*>(a.a) + first_row * a.a_row + pack * kPack<W>;
#pragma unroll
      for (int i = 0; i < Tile::rows; i += kRowsAtOnce) {
        ptx::cp_async_zfill(slot + ring_place(i + copy_row, copy_chunk),
                            reinterpret_cast<const uint4*>(weights + i * a.a_row), pack < packs && first_row + i < a.m);
      }
#pragma unroll
      for (int i = 0; i < Tile::vectors; i += kRowsAtOnce) {
        const int vector = i + copy_row;
        if (vector >= a.vectors) continue;
        const X* x = static_cast<const X*>(a.x) + vector * a.x_row + pack * kPack<W>;
#pragma unroll
        for (int plane = 0; plane < Tile::planes; ++plane) {
          ptx::cp_async_zfill(slot + ring_place(Tile::rows + plane * Tile::vectors + vector, copy_chunk),
                              reinterpret_cast<const uint4*>(x + plane * kPack<X>), pack < packs);
        }
      }
      next += Tile::warps;
      if (next >= end) {
        next = begin;
        next_tile += gridDim.x;
      }
    }
    ptx::cp_async_commit();
    fill.advance();
  };
#pragma unroll
  for (int i = 0; i < Tile::stages - 1; ++i) fetch();

  // the results of a tile that this thread finishes
  constexpr int kResults = (Tile::vectors * Tile::rows + Tile::threads - 1) / Tile::threads;
  const auto for_each_result = [&](int64_t tile, auto do_it) {
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * Tile::threads, vector = at / Tile::rows;
      const int64_t row = tile * Tile::rows + at % Tile::rows;
      if (vector < a.vectors && row < a.m) do_it(i, at, vector, row);
    }
  };

  RingSlot<Tile::stages> use;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float ahead[kResults];
    if (a.partial == nullptr) {
      for_each_result(tile, [&](int i, int, int vector, int64_t row) { ahead[i] = read_ahead<X>(a, vector, row); });
    }

    // multiply and add
    RingSums<W, X, Tile::rows, Tile::vectors> sum;
    for (int at = begin; at < end; at += Tile::warps) {
      ptx::cp_async_wait<Tile::stages - 2>();
      __syncwarp();  // all lanes' copies have landed, and all have read what is overwritten next
      fetch();
      sum.add(ring + use.slot * Tile::slot);
      use.advance();
    }

    // add up the warps
    sum.template store<Tile::pitch>(sums + warp * Tile::vectors * Tile::pitch);
    __syncthreads();
    for_each_result(tile, [&](int i, int at, int vector, int64_t row) {
      const float* from = sums + vector * Tile::pitch + at % Tile::rows;
      float total = from[0];
#pragma unroll
      for (int w = 1; w < Tile::warps; ++w) total += from[w * Tile::vectors * Tile::pitch];
      put_sum<X>(a, static_cast<int>(split), vector, row, total, ahead[i]);
    });
    __syncthreads();  // the next tile overwrites the sums
  }
  ptx::cp_async_wait<0>();
}

template <class W, class X, class Tile, class Args>
void launch_skinny_ring_tile(const Args& a, int most_blocks, cudaStream_t stream) {
  const int64_t tiles = (a.m + Tile::rows - 1) / Tile::rows;
  const int64_t blocks = std::clamp<int64_t>(most_blocks / a.splits, 1, tiles);
  launch<&skinny_ring_kernel<W, X, Tile, Args>>(
      {{static_cast<unsigned>(blocks), static_cast<unsigned>(a.splits)}, Tile::threads, Tile::shared_bytes}, stream, a);
}

// The largest ring that the GPU has room for, in one block per multiprocessor if it is the large one.
template <class W, class X, int vectors, class Args>
void launch_skinny_ring_of(const Args& a, int sm_count, cudaStream_t stream) {
  constexpr int kPlanes = sizeof(X) / sizeof(W);
  constexpr bool kWide = vectors * kPlanes > 16;  // slots so large that fewer must do
  using Shape = SkinnyRingShape<kRingRows, vectors, kPlanes>;
  using Large = SkinnyRingTile<Shape, 8, kWide ? 3 : 4>;
  using Small = SkinnyRingTile<Shape, 4, kWide ? 2 : 3>;
  using Tall = SkinnyRingTile<SkinnyRingShape<2 * kRingRows, vectors, kPlanes>, 4, kWide ? 4 : 5>;
  constexpr int kSm90 = 227 << 10, kSm89 = 99 << 10;
  static_assert(Large::shared_bytes <= kSm90 && Tall::shared_bytes <= kSm90 && Small::shared_bytes <= kSm89);
  const int limit = block_smem_limit();
  if (limit < Large::shared_bytes) {
    const int blocks = limit >= 2 * Small::shared_bytes ? 2 * sm_count : sm_count;
    launch_skinny_ring_tile<W, X, Small>(a, blocks, stream);
  } else if (vectors == 16 && sizeof(X) == 2 && limit >= Tall::shared_bytes && a.m >= int64_t{Tall::rows} * sm_count) {
    // Every tile reads all vectors, from L2: with so many of them, as few tiles as keep the GPU busy.
    if constexpr (vectors == 16 && sizeof(X) == 2) launch_skinny_ring_tile<W, X, Tall>(a, sm_count, stream);
  } else {
    launch_skinny_ring_tile<W, X, Large>(a, sm_count, stream);
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
