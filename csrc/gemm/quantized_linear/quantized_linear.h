// A linear layer whose weights have 4 or 8 bits: d[i, j] = sum over l of x[i, l] (q[j, l] - zero) scale + bias[j], with a
// scale and a zero for each j and group of l.
//
// Weights lie in units of 64 x 64 (n, k), in the order in which tensor cores read fragments of 16 x 16 as their first
// operand. In a unit, block r of 16 rows follows block r - 1. The lane l = 4 g + t holds of a fragment, as pairs along k,
//
//     v  row            columns
//     0  g              2 t, 2 t + 1
//     1  g + 8          2 t, 2 t + 1
//     2  g              2 t + 8, 2 t + 9
//     3  g + 8          2 t + 8, 2 t + 9
//
// in 4 bits as one word, the first of pair v in bits 4 v and up, the second 16 bits above it; in 8 bits as two words, of v
// 0 and 1 and of v 2 and 3, the first of a pair in byte v % 2, the second two bytes above it. A lane's four words that
// follow each other are fragments along k: four of them in 4 bits, two in 8.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "host/ceil_div.h"
#include "host/min_max.h"
#include "row/rows.h"
#include "tile/split.h"

namespace warpsmith {

inline constexpr int kUnit = 64;  // rows and columns of a unit of weights

struct QuantizedLinearArgs {
  const void* x;          // [m, k]
  const uint32_t* words;  // [n / 64, k / 64, 64 * 64 * bits / 32], rounded up
  const void* scales;     // [groups, n], contiguous, in the dtype of x
  const int8_t* zeros;    // [groups, n], contiguous, or nullptr: 8 in 4 bits, 0 in 8
  const void* bias;       // [n], contiguous, or nullptr
  void* d;                // [m, n], contiguous
  float* partial;         // [slices, m, n], before the scales where there is one group; or nullptr for one slice
  int64_t m, n, k;
  int64_t x_stride;  // elements from one row of x to the next
  int64_t groups;
  int64_t group;  // values of k that share a scale: 32, 64 or 128, or k for one group
  int bits;       // 4 or 8
  Dtype dtype;    // of x, scales, bias and d
  int sm, sm_count;
};

// By how many bits a number of k is shifted to that of its group.
__host__ __device__ constexpr int group_shift(int64_t group) { return group == 32 ? 5 : group == 64 ? 6 : 7; }

// Where the code of row j, column l lies in a unit of weights: in which word, and from which bit on.
struct CodePlace {
  int word, bit;
};

__host__ __device__ constexpr CodePlace code_place(int j, int l, int bits) {
  const int r = j / 16, g = j % 8, down = j / 8 % 2, fragment = l / 16;
  const int right = l / 8 % 2, t = l % 8 / 2, second = l % 2, lane = 4 * g + t;
  if (bits == 4) return {128 * r + 4 * lane + fragment, 4 * (down + 2 * right) + 16 * second};
  return {256 * r + 128 * (fragment / 2) + 4 * lane + 2 * (fragment % 2) + right, 8 * down + 16 * second};
}

// --- tiles and slices -----------------------------------------------------------------------------

inline constexpr int kQuantizedTileN = 128;       // rows of weights of a block
inline constexpr int64_t kLeastSliceDepth = 256;  // values of k
inline constexpr int64_t kMostSlices = 16;

// Rows of x of a block, by how many there are.
constexpr int quantized_tile_m(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128; }

// Few rows wait for weights, many for the tensor cores. Not measured yet.
constexpr TileCost quantized_cost(int bm) {
  constexpr int kDepth = 128;  // groups lie in one slice
  TileCost cost{.bm = bm, .bn = kQuantizedTileN, .bk = kDepth};
  if (bm == 16) {
    cost.blocks = 4, cost.alone = 0.35f, cost.full = 1.0f, cost.fill = 256.0f, cost.rate = 1.0e6f;
  } else if (bm == 32) {
    cost.blocks = 3, cost.alone = 0.4f, cost.full = 0.9f, cost.fill = 256.0f, cost.rate = 1.5e6f;
  } else if (bm == 64) {
    cost.blocks = 2, cost.alone = 0.55f, cost.full = 0.9f, cost.fill = 192.0f, cost.rate = 1.5e6f;
  } else {
    cost.blocks = 1, cost.alone = 1.0f, cost.full = 1.0f, cost.fill = 192.0f, cost.rate = 1.3e6f;
  }
  return cost;
}

inline Split split_quantized(const QuantizedLinearArgs& a, const TileCost& tile) {
  const int64_t most = std::max<int64_t>(1, std::min(a.k / kLeastSliceDepth, kMostSlices));
  return plan_tile({.batch = 1, .m = a.m, .n = a.n, .k = a.k, .most_splits = most, .sm_count = a.sm_count}, tile).split;
}

inline Split quantized_split(const QuantizedLinearArgs& a) {
  return split_quantized(a, quantized_cost(quantized_tile_m(a.m)));
}

// --- the same by wgmma ----------------------------------------------------------------------------

inline constexpr int kWgmmaDepth = 2 * kUnit;  // values of k of a stage

// Rows of x of a block, and the slices of k.
struct WgmmaTile {
  int bm;
  Split split;
};

constexpr int least_wgmma_tile_m(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : 64; }

// Blocks of a multiprocessor, each of which goes through several tiles: where rows of x are few, two blocks widen weights
// while others wait for them.
constexpr int wgmma_blocks(int bm) { return bm <= 32 ? 2 : 1; }

// Of tiles of 64 and 128 rows, and slices that leave no block without a place, those that are done first. By estimates,
// fitted to an H200: a stage takes a block so many microseconds, whether or not another one is beside it, a tile kAround
// beside its stages; the launch that adds up slices takes kJoin, and less than a microsecond for kPartials of their sums.
// Sums of a group beside all others leave no registers for more than 128.
constexpr WgmmaTile wgmma_tile(int64_t m, int64_t n, int64_t k, int sm_count) {
  constexpr float kAround = 1.5f, kStage32 = 0.75f, kStage64 = 0.6f, kStage128 = 0.8f, kJoin = 2.0f, kPartials = 4e5f;
  const int64_t steps = std::max<int64_t>(ceil_div(k, int64_t{kWgmmaDepth}), 1);
  const int64_t across = ceil_div(n, int64_t{kQuantizedTileN});
  const int64_t most = clamp<int64_t>(steps / 2, 1, kMostSlices);
  WgmmaTile best{};
  float least = 0.0f;
  for (int bm = least_wgmma_tile_m(m); bm <= 128; bm *= 2) {
    const int64_t tiles = ceil_div(m, int64_t{bm}) * across, blocks = int64_t{wgmma_blocks(bm)} * sm_count;
    const float stage = bm == 128 ? kStage128 : bm == 64 ? kStage64 : kStage32;
    for (int64_t wanted = 1; wanted <= most && (wanted == 1 || wanted * tiles <= blocks); ++wanted) {
      const int64_t each = ceil_div(steps, wanted), slices = ceil_div(steps, each);  // none is empty
      const auto rounds = static_cast<float>(ceil_div(tiles * slices, blocks));
      float time = rounds * (static_cast<float>(each) * stage + kAround);
      if (slices > 1) time += kJoin + static_cast<float>(slices * m * n) / kPartials;
      if (best.bm != 0 && time >= least) continue;
      best = {.bm = bm, .split = {.count = static_cast<int>(slices), .depth = each * kWgmmaDepth}};
      least = time;
    }
    if (bm < 64 || m <= 64) break;
  }
  return best;
}

static_assert(wgmma_tile(4, 16, 0, 132).split.count == 1);  // which mma takes
static_assert(wgmma_tile(16, 28672, 4096, 132).split.count == 1 && wgmma_tile(1, 4096, 14336, 132).split.count == 8);
static_assert(wgmma_tile(1, 8192, 28672, 132).split.count == 4 && wgmma_tile(128, 4096, 14336, 132).split.count == 4);
static_assert(wgmma_tile(128, 28672, 4096, 132).bm == 128 && wgmma_tile(2048, 6144, 4096, 132).split.count == 1);

// How many partial sums of each result either rung may leave.
inline int64_t most_quantized_slices(const QuantizedLinearArgs& a) {
  const int64_t of_mma = quantized_split(a).count;
  return a.sm == 90 ? std::max<int64_t>(of_mma, wgmma_tile(a.m, a.n, a.k, a.sm_count).split.count) : of_mma;
}

// Adds up partial sums [slices, m, n] in the order of the slices, and the bias. Where all of k is one group, its scale
// comes between: slices of a group that were scaled apart would make NaN of an infinite one. Defined in sum_slices.cu.
void sum_quantized_slices(const QuantizedLinearArgs& a, int slices, cudaStream_t stream);

}  // namespace warpsmith
