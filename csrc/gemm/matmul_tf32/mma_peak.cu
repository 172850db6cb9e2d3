// TF32 product, mma.m16n8k8, fragments in two sets of registers.
//   Against `mma`: warp tiles of 64 x 64, which read a sixth less shared memory for each product; while a warp multiplies
//   one k-step, it loads the next, so that one barrier a tile remains, and that without a wait for fragments behind it.
//   The product is computed as d^T = b^T a^T, which takes a row-major b as it comes, and values are rounded as they are
//   used, by one instruction on sm_90 and two before: 74 other instructions to 32 products, where moves and rounding by
//   predicates made it 149. Tiles by cost, split k where they are few (split.h); values that cannot be copied in fours
//   come one by one. Batches, and every layout, alignment and size.
//   Bound: shared memory, busy five sixths of the time that mma.sync takes, and the issue of instructions beside it.
//   Occupancy: large, 250 registers x 256 threads and 144 KiB, 1 block; square, 255 x 128 and 96 KiB, 2 blocks (1 below
//   sm_90); half, 164 x 128 and 72 KiB, 3 blocks (2 on sm_80, 1 on sm_89); small, 123 x 128 and 48 KiB, 4 blocks (3 and
//   2); single, 186 x 256 and 64 KiB, 1 block; small single, 168 x 128 and 48 KiB, 3 blocks (2 on sm_89).
#include "device/block_order.h"
#include "device/pipeline.h"
#include "gemm/matmul_tf32/transposed.cuh"
#include "gemm/split.cuh"
#include "gemm/split.h"
#include "host/launch.h"
#include "host/registry.h"
#include "tile/shared_limits.h"

namespace warpsmith {
namespace {

// `group`: tiles of a column that neighbouring blocks take together.
struct Large {
  static constexpr int bm = 128, bn = 256, bk = 32, wm = 64, wn = 64, stages = 3, blocks = 1, group = 8;
};

struct Square {
  static constexpr int bm = 128, bn = 128, bk = 32, wm = 64, wn = 64, stages = 3, blocks = 2, group = 16;
};

struct Half {
  static constexpr int bm = 128, bn = 64, bk = 32, wm = 64, wn = 32, stages = 3, blocks = 3, group = 16;
};

struct Small {
  static constexpr int bm = 64, bn = 64, bk = 32, wm = 32, wn = 32, stages = 3, blocks = 4, group = 16;
};

// For values that are copied one by one; the larger by twice the threads.
struct SmallSingle : Small {
  static constexpr int blocks = 3;
};

struct Single {
  static constexpr int bm = 128, bn = 128, bk = 16, wm = 32, wn = 64, stages = 4, blocks = 1, group = 16;
};

// Of a launch, beside the problem.
template <class Block, class Operands>
struct Plan {
  Split split;
  int tiles_m, tiles_n;
  typename TileCopies<typename TransposedConfig<Block, Operands>::A>::Steps steps_a;
  typename TileCopies<typename TransposedConfig<Block, Operands>::B>::Steps steps_b;
};

template <class Block, class Operands>
__global__ void __launch_bounds__(TransposedConfig<Block, Operands>::threads, Block::blocks)
    matmul_tf32_mma_peak_kernel(const Tf32Args p, const Plan<Block, Operands> plan) {
  using Config = TransposedConfig<Block, Operands>;
  using TileA = typename Config::A;
  using TileB = typename Config::B;
  constexpr bool kPairs = !TileB::k_inner;
  static_assert(!kPairs || pairs_conflict_free(OperandTile<TileB>::at, TileB::bk, TileB::extent));
  static_assert(Config::steps % 2 == 0, "fragments take turns in the same order in every tile");
  const Split& split = plan.split;
  extern __shared__ uint4 shared[];
  float* ring = reinterpret_cast<float*>(shared);  // [stages, tile of a and tile of b]
  const auto sA = [&](int slot) { return ring + slot * Config::stage; };
  const auto sB = [&](int slot) { return ring + slot * Config::stage + OperandTile<TileA>::size; };

  // which part of which product
  const uint32_t tiles = static_cast<uint32_t>(plan.tiles_m) * static_cast<uint32_t>(plan.tiles_n);
  const int64_t batch = blockIdx.x / tiles, slice = blockIdx.y;
  const TileCoord tile = grouped_tile(blockIdx.x % tiles, plan.tiles_m, plan.tiles_n, Block::group);
  const int64_t block_row = tile.m * Block::bm, block_col = tile.n * Block::bn;
  const int64_t k_first = slice * split.depth, k_size = min(p.k - k_first, split.depth);
  const int depth = static_cast<int>(ceil_div(k_size, Block::bk));  // in tiles
  const int k_last = static_cast<int>(k_size - int64_t{depth - 1} * Block::bk);

  // of which this warp computes
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp % Config::warps_m * Block::wm, warp_col = warp / Config::warps_m * Block::wn;
  const int rows_left = static_cast<int>(min(p.m - block_row - warp_row, int64_t{Block::wm}));
  const int cols_left = static_cast<int>(min(p.n - block_col - warp_col, int64_t{Block::wn}));
  float* out = split.count > 1 ? partial_sums(p, slice, batch) : static_cast<float*>(p.d) + batch * p.m * p.n;
  out += (block_row + warp_row) * p.n + block_col + warp_col;

  TileCopies<TileA> gA(p.a, batch, block_row, p.m, k_first);
  TileCopies<TileB> gB(p.b, batch, block_col, p.n, k_first);
  constexpr int kCopies = TileCopies<TileA>::count + TileCopies<TileB>::count;
  const auto copy = [&](int slot, int tile, int i) {
    const int k_here = tile < depth - 1 ? Block::bk : tile < depth ? k_last : 0;
    if (i < TileCopies<TileA>::count) {
      gA.start(sA(slot), i, k_here, plan.steps_a);
    } else {
      gB.start(sB(slot), i - TileCopies<TileA>::count, k_here, plan.steps_b);
    }
  };
  const auto end_tile = [&] {
    gA.advance(plan.steps_a);
    gB.advance(plan.steps_b);
    ptx::cp_async_commit();
  };
  Fragments<Block> fragments[2];
  const int lane_a = first_fragment<TileA>(warp_row);
  const int lane_b = first_fragment<TileB>(warp_col) + (kPairs && takes_high_pair_first() ? 2 : 0);
  const auto fetch = [&](Fragments<Block>& to, int slot, int step) {
    load_fragment<TileA>(to.a, sA(slot), lane_a, step);
    if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < Block::wn / 16; ++i) {
        constexpr int kLine = OperandTile<TileB>::cols;
        const float* from = sB(slot) + (lane_b ^ i % 2 * 2) + step * kStepDepth * kLine + i / 2 * kGroupRows;
        load_pairs(to.b.value[i], from, from + 4 * kLine);
      }
    } else {
      load_fragment<TileB>(to.b, sB(slot), lane_b, step);
    }
  };

  // fill the ring, but for one slot
  RingSlot<Block::stages> filled, used;
  for (; filled.slot < Block::stages - 1; filled.advance()) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) copy(filled.slot, filled.slot, i);
    end_tile();
  }
  ptx::cp_async_wait<Block::stages - 2>();
  __syncthreads();
  fetch(fragments[0], used.slot, 0);

  // multiply
  Sums<Transposed<Block>> sums;
  for (int done = 0; done < depth;) {
    const bool add = done > 0;
    const int stop = min(depth, done + kLongTensorCoreDepth / Block::bk);
    sums.clear();
    for (; done < stop; ++done) {
#pragma unroll
      for (int step = 0; step < Config::steps; ++step) {
        // The slot that is filled was read for the last time before the barrier of the tile before.
        constexpr int kShare = (kCopies + Config::steps - 2) / (Config::steps - 1);
        fetch(fragments[(step + 1) % 2], used.slot, (step + 1) % Config::steps);
#pragma unroll
        for (int i = step * kShare; i < min((step + 1) * kShare, kCopies); ++i) {
          copy(filled.slot, done + Block::stages - 1, i);
        }
        multiply_transposed<RoundedInUse>(sums, fragments[step % 2]);
        if (step == Config::steps - 2) {
          end_tile();
          ptx::cp_async_wait<Block::stages - 2>();
          __syncthreads();
          filled.advance();
          used.advance();
        }
      }
    }
    constexpr Columns kColumns = kPairs ? Columns::swapped_slots : Columns::slots;
    write_transposed<false, kColumns, Block>(out, p.n, rows_left, cols_left, sums, add);
  }
}

// --- the choice of the tile ---------------------------------------------------------------------------------------

// Rates relative to mma.sync's own, 0.62 of 1024 multiplications a clock on sm_90; of packs fitted to 5,176 timings of
// every tile and split on an H200, where they choose 0.8 % worse than the best on average, 26 % at most.
constexpr float kRate = 1.1e6f;

template <class Block>
constexpr TileCost cost_of(float alone, float full, float fill) {
  return {Block::bm, Block::bn, Block::bk, Block::blocks, alone, full, fill, kRate};
}

constexpr TileCost kLarge = cost_of<Large>(0.852f, 0.852f, 23.0f);
constexpr TileCost kSquare = cost_of<Square>(0.453f, 0.747f, 26.0f);
constexpr TileCost kHalf = cost_of<Half>(0.363f, 0.663f, 2.0f);
constexpr TileCost kSmall = cost_of<Small>(0.29f, 0.51f, 1.0f);
// of values that are copied one by one
constexpr TileCost kSingle = cost_of<Single>(0.37f, 0.37f, 80.0f);
constexpr TileCost kSmallSingle = cost_of<SmallSingle>(0.2f, 0.27f, 120.0f);

// `most_shared`: of a block, on the least of the GPUs that the tile is for.
template <class Block, class Operands, int most_shared>
void launch_tile(const Tf32Args& p, const Split& split, cudaStream_t stream) {
  using Config = TransposedConfig<Block, Operands>;
  static_assert(Config::shared <= most_shared, "a block of every GPU that the tile is for has room for the ring");
  const Plan<Block, Operands> plan{
      .split = split,
      .tiles_m = static_cast<int>(ceil_div(p.m, Block::bm)),
      .tiles_n = static_cast<int>(ceil_div(p.n, Block::bn)),
      .steps_a = TileCopies<typename Config::A>::steps(p.a),
      .steps_b = TileCopies<typename Config::B>::steps(p.b),
  };
  const dim3 grid(static_cast<unsigned>(p.batch * plan.tiles_m * plan.tiles_n), static_cast<unsigned>(split.count));
  warpsmith::launch<&matmul_tf32_mma_peak_kernel<Block, Operands>>({grid, Config::threads, Config::shared}, stream, p,
                                                                   plan);
  if (split.count > 1) sum_splits<float>(p, split.count, stream);
}

const char* takes(const Tf32Args& p) { return needs_tiles_in_grid(p); }

void launch(const Tf32Args& p, cudaStream_t stream) {
  const bool packed = in_packs(p.a, p.m, p.k, p.dtype, 16) && in_packs(p.b, p.k, p.n, p.dtype, 16);
  // Shared memory: 144 KiB for a block fit sm_80, sm_90 and sm_100 and their siblings, but not sm_86, sm_89 and sm_120;
  // 96 KiB for each of two blocks fit those from sm_90 on.
  const bool roomy = !has_little_shared_memory(p.sm), two_squares = roomy && p.sm >= 90;
  const TileCost square = two_squares ? kSquare : with_fewer(kSquare, 1);
  const TileCost half = two_squares ? kHalf : with_fewer(kHalf, roomy ? 2 : 1);
  const TileCost small = two_squares ? kSmall : with_fewer(kSmall, roomy ? 3 : 2);
  Split split;
  dispatch_orders(p, [&]<Order a, Order b>() {
    if (!packed) {
      using OneByOne = Operands<a, b, 1>;
      return best_tile(p, {with_fewer(kSmallSingle, roomy ? 3 : 2), kSingle}, split) == 0
                 ? launch_tile<SmallSingle, OneByOne, kSharedOfSm89>(p, split, stream)
                 : launch_tile<Single, OneByOne, kSharedOfSm89>(p, split, stream);
    }
    using Packed = Operands<a, b, 4>;
    const int best =
        roomy ? best_tile(p, {small, half, square, kLarge}, split) : best_tile(p, {small, half, square}, split);
    if (best == 0) return launch_tile<Small, Packed, kSharedOfSm89>(p, split, stream);
    if (best == 1) return launch_tile<Half, Packed, kSharedOfSm89>(p, split, stream);
    if (best == 2) return launch_tile<Square, Packed, kSharedOfSm89>(p, split, stream);
    launch_tile<Large, Packed, kSharedOfSm80>(p, split, stream);
  });
}

const Register<Tf32Args> registered{"mma_peak", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
