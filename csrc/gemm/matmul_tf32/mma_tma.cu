// TF32 product, mma.m16n8k8, tiles brought and rounded by the copy engine.
//   Against `mma_peak`: cp.async.bulk.tensor brings whole boxes of an operand, swizzled, with zeros where it ends, and as
//   CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 rounds them on the way (to nearest, ties to even). Nothing is left to the warps but
//   loads of fragments and products: 34 other instructions to 32 products, where rounding alone takes 32 in `mma_peak`.
//   Tiles of 128 x 128, of which a multiprocessor holds two: one block multiplies while the other begins or ends. A
//   row-major; b in either order; one product at a time.
//   Bound: shared memory, whose fragments take four fifths of the time of the products; wgmma, which reads operands
//   from there once for four warps, is not bound so.
//   Occupancy: 220 registers x 128 threads and 96 KiB, 2 blocks.
//   The copy engine: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#tensor-memory-access
#include "device/block_order.h"
#include "device/ptx/mma.h"
#include "device/tma_ring.h"
#include "gemm/matmul_tf32/transposed.cuh"
#include "gemm/split.cuh"
#include "gemm/split.h"
#include "host/launch.h"
#include "host/registry.h"
#include "host/tensor_map.h"
#include "tile/shared_limits.h"

namespace warpsmith {
namespace {

struct Block {
  static constexpr int bm = 128, bn = 128, bk = 32, wm = 64, wn = 64, stages = 3, blocks = 2;
};

constexpr int kWarpsM = Block::bm / Block::wm, kWarps = kWarpsM * (Block::bn / Block::wn), kThreads = 32 * kWarps;

// Boxes have lines of 32 values: 128 bytes, of which the 16-byte chunks are swizzled by the number of the line. A tile
// of a is one box, of b one for every 32 columns.
constexpr int kLine = 32;
static_assert(Block::bk == kLine && Block::bn == 32 * kWarps, "a warp brings a box of b");
constexpr int kTileA = Block::bm * kLine, kStage = kTileA + Block::bn * kLine;  // values
constexpr int kStageBytes = kStage * static_cast<int>(sizeof(float));
constexpr int kShared = Block::stages * kStageBytes + static_cast<int>(sizeof(TmaStages<Block::stages>));
static_assert(kShared <= kSharedOfSm90, "a block of sm_90 has room for the ring");

// Where a value of a box lies.
constexpr int in_box(int line, int col) { return line * kLine + (col ^ line % 8 * 4); }
static_assert(pairs_conflict_free(in_box, Block::bk, 32));

// Of a launch, beside the problem.
struct Plan {
  Split split;
  int tiles_m, tiles_n;
};

template <Order order_b>
__global__ void __launch_bounds__(kThreads, Block::blocks)
    matmul_tf32_mma_tma_kernel([[maybe_unused]] const Tf32Args p, [[maybe_unused]] const Plan plan,
                               [[maybe_unused]] const __grid_constant__ CUtensorMap map_a,
                               [[maybe_unused]] const __grid_constant__ CUtensorMap map_b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr bool kInnerB = order_b == Order::columns;  // k is innermost
  constexpr int kGroup = 16;                           // tiles of a column that neighbouring blocks take together
  constexpr int kSteps = Block::bk / kStepDepth, kBox = 32 * kLine;
  extern __shared__ __align__(1024) float ring[];  // [stages, tile of a and tile of b], then the barriers
  auto& landed = *reinterpret_cast<TmaStages<Block::stages>*>(ring + Block::stages * kStage);
  const auto sA = [&](int slot) { return ring + slot * kStage; };
  const auto sB = [&](int slot) { return ring + slot * kStage + kTileA; };

  // which part of the product
  const int64_t slice = blockIdx.y;
  const TileCoord tile = grouped_tile(blockIdx.x, plan.tiles_m, plan.tiles_n, kGroup);
  const int block_row = static_cast<int>(tile.m) * Block::bm, block_col = static_cast<int>(tile.n) * Block::bn;
  const int64_t k_size = min(p.k - slice * plan.split.depth, plan.split.depth);
  const int k_first = static_cast<int>(slice * plan.split.depth);
  const int depth = static_cast<int>(ceil_div(k_size, Block::bk));  // in tiles

  // of which this warp computes
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);  // uniform, as the compiler now knows
  const int warp_row = warp % kWarpsM * Block::wm, warp_col = warp / kWarpsM * Block::wn;

  if (threadIdx.x == 0) {
    landed.init(1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int box_col = block_col + warp * 32;
  const auto fill = [&](const RingSlot<Block::stages>& at, int tile) {
    if (lane == 0 && tile < depth) {
      const int k = k_first + tile * Block::bk;
      uint64_t* full = landed.full + at.slot;
      if (warp == 0) {
        landed.expect(at, kStageBytes);
        ptx::tensor_load(sA(at.slot), &map_a, {block_row, k}, full);
      }
      ptx::tensor_load(sB(at.slot) + warp * kBox, &map_b, {kInnerB ? box_col : k, kInnerB ? k : box_col}, full);
    }
    __syncwarp();
  };

  // ldmatrix takes eight neighbouring rows of values along k; b with n innermost comes in pairs.
  const int row_a = (warp_row + lane % 8 + lane / 16 * 8) * kLine, half_a = lane / 8 % 2 * 4;
  const int row_b = (warp_col + lane % 16) * kLine, half_b = lane / 16 * 4, swizzle = lane % 8 * 4;
  const int number_col = row_of(lane / 4) + (takes_high_pair_first() ? 2 : 0);
  const auto fetch = [&](Fragments<Block>& to, int slot, int step) {
#pragma unroll
    for (int j = 0; j < Block::wm / 16; ++j) {
      const int k = (step * kStepDepth + half_a) ^ swizzle;
      ptx::ldmatrix(to.a.value[j], sA(slot) + row_a + j * 16 * kLine + k);
    }
#pragma unroll
    for (int i = 0; i < Block::wn / 16; ++i) {
      if constexpr (kInnerB) {
        const int k = (step * kStepDepth + half_b) ^ swizzle;
        ptx::ldmatrix(to.b.value[i], sB(slot) + row_b + i * 16 * kLine + k);
      } else {
        const float* box = sB(slot) + warp_col / 32 * kBox + i / 2 * kBox + step * kStepDepth * kLine;
        const int k = lane % 4, col = number_col ^ i % 2 * 2;
        load_pairs(to.b.value[i], box + in_box(k, col), box + in_box(k + 4, col));
      }
    }
  };

  Fragments<Block> fragments[2];
  RingSlot<Block::stages> filled, used;
  for (; filled.slot < Block::stages - 1; filled.advance()) fill(filled, filled.slot);
  landed.wait(used);
  fetch(fragments[0], 0, 0);

  const int rows_left = static_cast<int>(min(p.m - block_row - warp_row, int64_t{Block::wm}));
  const int cols_left = static_cast<int>(min(p.n - block_col - warp_col, int64_t{Block::wn}));
  float* out = plan.split.count > 1 ? partial_sums(p, slice, 0) : static_cast<float*>(p.d);
  out += (int64_t{block_row} + warp_row) * p.n + block_col + warp_col;

  // multiply
  Sums<Transposed<Block>> sums;
  for (int done = 0; done < depth;) {
    const bool add = done > 0;
    const int stop = min(depth, done + kLongTensorCoreDepth / Block::bk);
    sums.clear();
    for (; done < stop; ++done) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        fetch(fragments[(step + 1) % 2], used.slot, (step + 1) % kSteps);  // behind the last tile: for nobody
        // The slot that is filled was read for the last time before the barrier of the tile before.
        if (step == 0) fill(filled, done + Block::stages - 1);
        multiply_transposed<RoundedBefore>(sums, fragments[step % 2]);
        if (step == kSteps - 2) {
          filled.advance();
          used.advance();
          if (done + 1 < depth) landed.wait(used);
          ptx::fence_proxy_async();  // read before the copy over it that follows the barrier
          __syncthreads();
        }
      }
    }
    constexpr Columns kColumns = kInnerB ? Columns::natural : Columns::swapped_slots;
    write_transposed<true, kColumns, Block>(out, p.n, rows_left, cols_left, sums, add);
  }
#endif
}

// Rates relative to that of mma_peak.cu.
constexpr TileCost kCost{Block::bm, Block::bn, Block::bk, Block::blocks, 0.62f, 0.82f, 80.0f, 1.1e6f};

template <Order order_b>
void launch_ordered(const Tf32Args& p, cudaStream_t stream) {
  const Plan plan{
      .split = plan_tile(p, kCost).split,
      .tiles_m = static_cast<int>(ceil_div(p.m, Block::bm)),
      .tiles_n = static_cast<int>(ceil_div(p.n, Block::bn)),
  };
  MappedMatrix a{.data = p.a.data,
                 .type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
                 .rows = p.m,
                 .cols = p.k,
                 .ld = p.a.ld,
                 .box_rows = Block::bm,
                 .box_cols = kLine};
  MappedMatrix b{.data = p.b.data,
                 .type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
                 .rows = p.k,
                 .cols = p.n,
                 .ld = p.b.ld,
                 .box_rows = 32,
                 .box_cols = kLine};
  if (order_b == Order::columns) std::swap(b.rows, b.cols);
  const dim3 grid(static_cast<unsigned>(plan.tiles_m) * static_cast<unsigned>(plan.tiles_n),
                  static_cast<unsigned>(plan.split.count));
  warpsmith::launch<&matmul_tf32_mma_tma_kernel<order_b>>({grid, kThreads, kShared}, stream, p, plan, tensor_map(a),
                                                          tensor_map(b));
  if (plan.split.count > 1) sum_splits<float>(p, plan.split.count, stream);
}

void launch(const Tf32Args& p, cudaStream_t stream) {
  p.b.order == Order::rows ? launch_ordered<Order::rows>(p, stream) : launch_ordered<Order::columns>(p, stream);
}

const char* takes(const Tf32Args& p) {
  if (const char* reason = needs_one_product(p)) return reason;
  if (p.a.order != Order::rows) return "needs a row-major";
  constexpr int kSize = sizeof(float);
  const bool rows = p.b.order == Order::rows;
  const bool mapped = can_map(p.a.data, p.m, p.k, p.a.ld, kSize) &&
                      can_map(p.b.data, rows ? p.k : p.n, rows ? p.n : p.k, p.b.ld, kSize);
  return mapped ? nullptr : "needs a and b in lines that begin at multiples of 16 bytes, and sizes below 2^31";
}

// Smaller tiles waste less, and finish earlier where they do not fill the GPU.
bool suits(const Tf32Args& p) {
  return p.m > 64 && p.n > 64 && p.k >= 256 && ceil_div(p.m, Block::bm) * ceil_div(p.n, Block::bn) > 64;
}

const Register<Tf32Args> registered{"mma_tma", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
