// Row-major weights times a few vectors, as the kernels that stream weights see it: what GEMV, its scaled form and a
// matrix product with few rows share. y[v, row] = scale[row] * (a[row, :] . x[v, :])
#pragma once

#include <cstdint>

#include "host/dtype.h"
#include "host/min_max.h"

namespace warpsmith {

// Vectors of one call; more are a matrix product.
inline constexpr int kMostVectors = 16;
// From registers of skinny_block.cuh; more pay for being kept in shared memory, by skinny_ring.cuh: with weights of 16
// bits from two on, as tensor cores take over there.
constexpr int most_block_vectors(int weight_bytes) { return weight_bytes == 2 ? 1 : 2; }
// For rows of no more, half of the threads of such a block will do.
inline constexpr int64_t kShortRowBytes = 4096;

struct SkinnyArgs {
  const void* a;                // [m, k], columns contiguous, rows aligned to 16 bytes and whole packs long
  const void* x;                // [vectors, k], columns contiguous, rows aligned to 16 bytes
  void* y;                      // [vectors, m], columns contiguous, of the dtype of x
  const float* scale;           // [m], or one value where scale_step is 0; nullptr for 1
  float* partial;               // [splits, vectors, m], or nullptr where splits is 1
  int64_t m, k;                 // at most 2^31 - 1, not 0
  int vectors;                  // 1 to kMostVectors
  int splits;                   // slices of k, each the work of other blocks
  int64_t a_row, x_row, y_row;  // elements from one row to the next; in skinny_ring_columns.cuh a_row between columns
  int64_t scale_step;           // 1 or 0
};

// Slices of k, at most `most`: as many as it takes until `blocks` blocks a slice come to `wanted`. A fixed function of the
// sizes and the GPU, and so is the order of every addition.
constexpr int slices_of_k(int64_t blocks, int64_t wanted, int64_t most) {
  constexpr int64_t kMost = 64;  // what the second launch adds up
  return static_cast<int>(clamp<int64_t>(std::min(wanted / blocks, most), 1, kMost));
}

// Rows (more where those are plenty) and, of each, bytes that a warp of skinny_ring.cuh takes at a time.
inline constexpr int kRingRows = 32, kRingRowBytes = 128;

inline int skinny_ring_slices(int64_t m, int64_t k_bytes, int sm_count) {
  constexpr int64_t kLeastBytes = 32 * kRingRowBytes;  // of each row in a slice
  return slices_of_k((m + kRingRows - 1) / kRingRows, sm_count, k_bytes / kLeastBytes);
}

}  // namespace warpsmith
