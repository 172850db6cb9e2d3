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

#include <algorithm>
#include <cstdint>

#include "host/ceil_div.h"
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
  float* partial;         // [slices, m, n], or nullptr for one slice
  int64_t m, n, k;
  int64_t x_stride;  // elements from one row of x to the next
  int64_t groups;
  int64_t group;  // values of k that share a scale: 32, 64 or 128, or k for one group
  int bits;       // 4 or 8
  Dtype dtype;    // of x, scales, bias and d
  int sm, sm_count;
};

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

// Rows of x of a block: sums of a group beside all others leave no registers for more.
constexpr int wgmma_tile_m(int64_t m) { return m <= 64 ? 64 : 128; }

inline Split wgmma_split(const QuantizedLinearArgs& a) {
  const int bm = wgmma_tile_m(a.m);
  return split_quantized(a, {.bm = bm,
                             .bn = kQuantizedTileN,
                             .bk = 128,
                             .blocks = 1,
                             .alone = 1.0f,
                             .full = 1.0f,
                             .fill = 256.0f,
                             .rate = bm == 64 ? 1.7e6f : 2.6e6f});
}

// Of whichever rung serves.
inline int64_t most_quantized_slices(const QuantizedLinearArgs& a) {
  const int of_mma = quantized_split(a).count;
  return a.sm == 90 ? std::max(of_mma, wgmma_split(a).count) : of_mma;
}

// Adds up partial sums [slices, m, n] in the order of the slices, and the bias. Defined in sum_slices.cu.
void sum_quantized_slices(const QuantizedLinearArgs& a, int slices, cudaStream_t stream);

}  // namespace warpsmith
