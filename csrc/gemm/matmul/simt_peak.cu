// Matrix product in f32 on the CUDA cores, at their peak.
//   Against `async_t8x16`: a warp computes 64 x 64, so a value read from shared memory is multiplied 8 or 16 times and
//   multiplications are nine instructions in ten; four buffers of copies hide DRAM; operands in either order
//   and at any alignment are copied straight into [k, row] order, 4 bytes at a time where they must be transposed. Only the
//   first tile of k may be partial: the loop over the others is one basic block without a test of k. Copies of a tile
//   are spread over the k of the one that is multiplied, lest fragments wait behind them.
//   A multiplication reads three registers, and two banks give one each a cycle. So columns of a thread's sums are
//   walked up and down, which lets the operand caches hold what the next one needs, and sums leave one at a time, which
//   leaves the compiler free to keep them out of the bank that b's values stand in.
//   Tiles are walked in an order that shares L2. Where large tiles do not fill the GPU, smaller ones do, or slices of k,
//   of the block's groups of warps or of several blocks. Takes every call.
//   Occupancy: one block of 256 threads x up to 255 registers and 50 KB, or two of 128 and 33 KB; of the smaller tiles
//   one of 384 x 168 and 77 KB, three of 128 x 168 and 25 KB or four of 128 x 128 and 17 KB.
//   Bound: issue slots of FFMA, then register ports.
#include <type_traits>

#include "device/block_order.h"
#include "device/ptx/barrier.h"
#include "device/ptx/copy.h"
#include "gemm/simt_copy.cuh"
#include "gemm/simt_tile.cuh"
#include "gemm/split.cuh"
#include "gemm/split.h"
#include "host/min_max.h"
#include "host/registry.h"
#include "tile/chunks.cuh"

namespace warpsmith {
namespace {

constexpr int kGroup = 8;          // rows of tiles that are walked column by column
constexpr int kPassesPerStep = 4;  // passes of copies for each k of a tile

// m, n, warps along both, groups of warps, blocks on a multiprocessor
using Huge = SimtTile<256, 128, 4, 2, 1, 1>;
using Large = SimtTile<128, 128, 2, 2, 1, 2>;
using Shared = SimtTile<128, 64, 2, 2, 3, 1>;
using Medium = SimtTile<128, 64, 2, 2, 1, 3>;
using Small = SimtTile<64, 64, 2, 2, 1, 4>;

// Shared memory of a block: a ring of tiles of both operands for each group of warps, later the way out of the sums.
template <class Tile, class CopyA, class CopyB>
struct RingMemory {
  static constexpr int of_a = Tile::bk * CopyA::stride, stage = of_a + Tile::bk * CopyB::stride;  // floats
  static constexpr int ring = Tile::stages * stage;
  static constexpr int floats = std::max(Tile::groups * ring, SimtPatch<Tile>::of_block);
};

// A group's values of k: the first tile holds what makes all others whole.
struct Slice {
  int64_t first;
  int steps, head;  // tiles of k; values of the first one
};

template <class Tile>
__device__ __forceinline__ Slice slice_of(int64_t first, int64_t depth, int group) {
  const int steps = static_cast<int>(ceil_div(depth, Tile::bk));
  const int head = static_cast<int>(depth - (steps - 1) * int64_t{Tile::bk});
  if constexpr (Tile::groups == 1) return {first, steps, head};
  const int each = (steps + Tile::groups - 1) / Tile::groups, before = group * each;
  if (group == 0) return {first, each, head};
  if (before >= steps) return {0, 1, 0};  // nothing is left: a tile of zeros
  return {first + head + (before - 1) * int64_t{Tile::bk}, min(each, steps - before), Tile::bk};
}

// sums += a b for one k. Of the three registers that a multiplication reads, b's is the one before for a whole column,
// and at its end a's is too.
template <int tm, int tn>
__device__ __forceinline__ void multiply(float (&sums)[tm][tn], const float (&a)[tm], const float (&b)[tn]) {
#pragma unroll
  for (int j = 0; j < tn; ++j) {
#pragma unroll
    for (int step = 0; step < tm; ++step) {
      const int i = j % 2 == 0 ? step : tm - 1 - step;
      sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
    }
  }
}

// `Finished`: of the product alone, or where a second kernel finishes the sums of slices. Compiled apart: what finishes
// sums would move those of the main loop to other register banks.
template <class Tile, class OfA, class OfB, class Finished>
__global__ void __launch_bounds__(Tile::threads* Tile::groups, Tile::blocks)
    matmul_simt_peak_kernel(const GemmArgs p, const Split split) {
  using CopyA = typename OfA::template Copy<Tile::bm, Tile::threads>;
  using CopyB = typename OfB::template Copy<Tile::bn, Tile::threads>;
  using Memory = RingMemory<Tile, CopyA, CopyB>;
  constexpr int kDepth = Tile::bk;
  static_assert(kDepth == kCopyDepth);
  extern __shared__ __align__(16) float shared[];
  const int group = Tile::groups == 1 ? 0 : static_cast<int>(threadIdx.x) / Tile::threads;
  const int thread = static_cast<int>(threadIdx.x) - group * Tile::threads, lane = thread % 32, warp = thread / 32;
  const auto sync_group = [&] {
    if constexpr (Tile::groups == 1) {
      __syncthreads();
    } else {
      ptx::sync_warps(1 + group, Tile::threads);
    }
  };

  // which tile, of which product, with which slice of k
  const int64_t tiles_m = ceil_div(p.m, Tile::bm), tiles_n = ceil_div(p.n, Tile::bn);
  const uint32_t tiles = static_cast<uint32_t>(tiles_m * tiles_n);
  const TileCoord tile = grouped_tile(blockIdx.x % tiles, tiles_m, tiles_n, kGroup);
  const uint32_t above = blockIdx.x / tiles;
  const int64_t part = above % static_cast<uint32_t>(split.count), batch = above / static_cast<uint32_t>(split.count);
  const int64_t first_row = tile.m * Tile::bm, first_col = tile.n * Tile::bn, first_k = part * split.depth;
  const Slice slice = slice_of<Tile>(first_k, min(split.depth, p.k - first_k), group);

  const auto source = [&](const Matrix& x, int64_t first, int64_t extent, int rows, bool by_k) {
    const float* data = static_cast<const float*>(x.data) + batch * x.batch;
    data += by_k ? first * x.ld + slice.first : first + slice.first * x.ld;
    return CopySource{data, x.ld, static_cast<int>(min(extent - first, int64_t{rows}))};
  };
  float* const ring = shared + group * Memory::ring;
  CopyA copy_a(source(p.a, first_row, p.m, Tile::bm, p.a.order == Order::rows), ring, thread);
  CopyB copy_b(source(p.b, first_col, p.n, Tile::bn, p.b.order == Order::columns), ring + Memory::of_a, thread);
  constexpr int kStage = Memory::stage * static_cast<int>(sizeof(float)), kLast = (Tile::stages - 1) * kStage;
  const auto next_stage = [](int at) { return at == kLast ? 0 : at + kStage; };

  // A tile of k comes in passes of all threads, a few for each k of the tile that is multiplied meanwhile: all at once
  // would keep fragments waiting behind them.
  constexpr int kPasses = CopyA::passes + CopyB::passes, kCopySteps = ceil_div(kPasses, kPassesPerStep);
  static_assert(kCopySteps < kDepth, "a tile is copied before it is waited for");
  const auto copy_next = [&](int step, int at, bool go) {
#pragma unroll
    for (int i = step * kPassesPerStep; i < min((step + 1) * kPassesPerStep, kPasses); ++i) {
      if (i < CopyA::passes) {
        copy_a.next(i, at, go);
      } else {
        copy_b.next(i - CopyA::passes, at, go);
      }
    }
    if (step == kCopySteps - 1) ptx::cp_async_commit();
  };
  copy_a.start(slice.head);
  copy_b.start(slice.head);
  ptx::cp_async_commit();
#pragma unroll
  for (int i = 1; i < Tile::stages - 1; ++i) {
#pragma unroll
    for (int step = 0; step < kCopySteps; ++step) copy_next(step, i * kStage, i < slice.steps);
  }

  const int row = warp / Tile::warps_n * Tile::wm, col = warp % Tile::warps_n * Tile::wn;
  const float* const rows = ring + row + lane_row(lane) * kLaneChunk;
  const float* const cols = ring + Memory::of_a + col + lane_col(lane) * kLaneChunk;
  float a[2][Tile::tm], b[2][Tile::tn], sums[Tile::tm][Tile::tn] = {};
  int write = kLast, read = 0;  // where in the ring a tile of k is copied to, or read
  const auto load_fragments = [&](int buffer, int k) {
    load_chunks(b[buffer], bytes_on(cols, read) + k * CopyB::stride, kColStep);
    load_chunks(a[buffer], bytes_on(rows, read) + k * CopyA::stride, kRowStep);
  };

  ptx::cp_async_wait<Tile::stages - 2>();
  sync_group();
  load_fragments(0, 0);
#pragma unroll 1
  for (int left = slice.steps; left > 0; --left) {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      // Fragments are read one k ahead, at the end of the tile from the next one. What this reads past the last tile is
      // not used.
      if (k == kDepth - 1) {
        ptx::cp_async_wait<Tile::stages - 2>();
        sync_group();
        write = read;  // all warps have left it
        read = next_stage(read);
      }
      load_fragments((k + 1) % 2, (k + 1) % kDepth);
      if (k < kCopySteps) copy_next(k, write, left >= Tile::stages);
      multiply(sums, a[k % 2], b[k % 2]);
    }
  }
  __syncthreads();

  float* const data = split.count > 1 ? partial_sums(p, part, batch) : static_cast<float*>(p.d) + batch * p.m * p.n;
  const int64_t to_row = first_row + row, to_col = first_col + col;
  const SimtTarget to{data + to_row * p.n + to_col,
                      batch,
                      to_row,
                      to_col,
                      static_cast<int>(min(p.m - to_row, int64_t{Tile::wm})),
                      static_cast<int>(min(p.n - to_col, int64_t{Tile::wn}))};
  store_sums<Tile, Finished>(p, to, shared, group, warp, sums);
}

// --- the choice -------------------------------------------------------------------------------------------------

// Fitted to 6,525 timings of every tile and split on an H200, where they choose 0.7 % worse than the best on average, 11 %
// at most. A multiprocessor multiplies 128 times a cycle.
template <class Tile>
constexpr TileCost cost_of(float alone, float full, float fill, bool together = false) {
  return {Tile::bm, Tile::bn, Tile::bk, Tile::blocks, alone, full, fill, /*rate=*/128 * 1.98e3f, together};
}
constexpr TileCost kTiles[] = {
    cost_of<Huge>(0.82f, 0.82f, 14.0f), cost_of<Large>(0.62f, 0.815f, 24.0f, /*together=*/true),
    cost_of<Medium>(0.58f, 0.75f, 9.0f), cost_of<Small>(0.495f, 0.62f, 1.0f), cost_of<Shared>(0.69f, 0.69f, 56.0f)};
constexpr int kInOrder = 4;  // those whose groups do not share k: they add it up in its order

template <class Tile, class OfA, class OfB>
void launch_tile(const GemmArgs& p, const Split& split, cudaStream_t stream) {
  using CopyA = typename OfA::template Copy<Tile::bm, Tile::threads>;
  using CopyB = typename OfB::template Copy<Tile::bn, Tile::threads>;
  const int64_t blocks = ceil_div(p.m, Tile::bm) * ceil_div(p.n, Tile::bn) * p.batch * split.count;
  constexpr int kBytes = RingMemory<Tile, CopyA, CopyB>::floats * static_cast<int>(sizeof(float));
  static_assert(Tile::blocks * (kBytes + 1024) <= 100 * 1024, "what the smallest multiprocessors have");
  const LaunchConfig config{static_cast<unsigned>(blocks), Tile::threads * Tile::groups, kBytes};
  if (split.count > 1 || needs_product_alone(p) == nullptr) {
    warpsmith::launch<&matmul_simt_peak_kernel<Tile, OfA, OfB, std::true_type>>(config, stream, p, split);
  } else {
    warpsmith::launch<&matmul_simt_peak_kernel<Tile, OfA, OfB, std::false_type>>(config, stream, p, split);
  }
  if (split.count > 1) sum_splits<float>(p, split.count, stream);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  Split split;
  const int best = best_tile(p, kTiles, split, p.batch_invariant ? kInOrder : kInOrder + 1);
  with_copy(p.a, p.a.order == Order::rows, p.m, p.k, [&]<class OfA>() {
    with_copy(p.b, p.b.order == Order::columns, p.n, p.k, [&]<class OfB>() {
      switch (best) {
        case 0:
          return launch_tile<Huge, OfA, OfB>(p, split, stream);
        case 1:
          return launch_tile<Large, OfA, OfB>(p, split, stream);
        case 2:
          return launch_tile<Medium, OfA, OfB>(p, split, stream);
        case 3:
          return launch_tile<Small, OfA, OfB>(p, split, stream);
        default:
          return launch_tile<Shared, OfA, OfB>(p, split, stream);
      }
    });
  });
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_tiles_in_grid(p) : "takes f32"; }

const Register<GemmArgs> registered{"simt_peak", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
