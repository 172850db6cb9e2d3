// Matrix products, as every kernel of the climb is given them:
//   d = activation(alpha * a b + beta * c), with a [m, k], b [k, n], c and d [m, n], a batch of them in one call.
// The conditions below are what rungs refuse a call with; kernels/warpsmith/gemm/problem.py says them in the same words.
#pragma once

#include <cstdint>

#include "host/ceil_div.h"
#include "host/dtype.h"
#include "tile/matrix.h"

namespace warpsmith {

// Added to the product; strides of 0 repeat it.
struct Addend {
  const void* data;  // nullptr: nothing is added
  int64_t batch, row, col;
};

enum class Activation : int { none, relu, gelu, gelu_tanh, silu };

struct GemmArgs {
  Matrix a;                // [batch, m, k]
  Matrix b;                // [batch, k, n]
  Addend c;                // [batch, m, n]
  void* d;                 // [batch, m, n], contiguous
  void* workspace;         // split_workspace_bytes() of split.h or, for copies, padded_workspace_bytes() of padding.h,
                           // aligned to 16 bytes; nullptr where those are 0
  int64_t batch, m, n, k;  // each at least 1
  float alpha, beta;
  Activation activation;
  Dtype dtype;        // of a, b, c and, but for `wide`, d
  Dtype accumulator;  // f32, or f16 of f16
  int sm, sm_count;   // of the GPU: its compute capability and its multiprocessors
  // The bits of a row do not depend on how many rows there are: k is added up in its order, in one sum.
  bool batch_invariant;
  // d is f32, of operands of 16 bits: the product alone. Rungs with slices of k leave it as they leave the sums of one.
  bool wide;
};

// Products that the rungs of the CUDA cores add up in one sum: rounding errors grow with its length, so longer sums are
// sums of such sums. They grow with the number of sums too; about the square root of a long k is best.
inline constexpr int64_t kMostTerms = 256;

// --- conditions -------------------------------------------------------------------------------------------------

inline const char* needs_product_alone(const GemmArgs& p) {
  const bool alone = p.c.data == nullptr && p.alpha == 1.0f && p.activation == Activation::none;
  return alone ? nullptr : "computes the product alone";
}

inline const char* needs_result_like_operands(const GemmArgs& p) {
  return p.wide ? "gives results of the operands' dtype" : nullptr;
}

inline const char* needs_one_product(const GemmArgs& p) {
  return p.batch == 1 ? nullptr : "takes one product at a time";
}

// What the teaching rungs compute: d = a b, once.
inline const char* needs_plain(const GemmArgs& p) {
  if (const char* reason = needs_result_like_operands(p)) return reason;
  if (const char* reason = needs_product_alone(p)) return reason;
  return needs_one_product(p);
}

// Of rungs that add up few rows in another order than many.
inline const char* needs_free_order(const GemmArgs& p) {
  return p.batch_invariant ? "adds up few rows in an order of its own" : nullptr;
}

inline const char* needs_row_major(const GemmArgs& p) {
  return p.a.order == Order::rows && p.b.order == Order::rows ? nullptr : "needs a and b row-major";
}

// The layout that BLAS calls TN.
inline const char* needs_b_column_major(const GemmArgs& p) {
  return p.a.order == Order::rows && p.b.order == Order::columns ? nullptr : "needs a row-major and b column-major";
}

inline bool operands_in_packs(const GemmArgs& p, int bytes) {
  return in_packs(p.a, p.m, p.k, p.dtype, bytes) && in_packs(p.b, p.k, p.n, p.dtype, bytes) &&
         p.n * size_of(p.dtype) % bytes == 0;
}

// Of a, b and the rows of d, for vector accesses on either side.
inline const char* needs_packs_8(const GemmArgs& p) {
  return operands_in_packs(p, 8) ? nullptr : "needs a, b and the product in packs of 8 bytes";
}

inline const char* needs_packs_16(const GemmArgs& p) {
  return operands_in_packs(p, 16) ? nullptr : "needs a, b and the product in packs of 16 bytes";
}

inline const char* needs_f32_accumulator(const GemmArgs& p) {
  return p.accumulator == Dtype::f32 ? nullptr : "accumulates in f32";
}

inline const char* needs_16_bits(const GemmArgs& p) { return p.dtype == Dtype::f32 ? "takes f16 and bf16" : nullptr; }

// Of a and b alone.
inline const char* needs_operand_packs_16(const GemmArgs& p) {
  const bool whole = in_packs(p.a, p.m, p.k, p.dtype, 16) && in_packs(p.b, p.k, p.n, p.dtype, 16);
  return whole ? nullptr : "needs a and b in packs of 16 bytes";
}

// Batches of tiny products can have more tiles than a grid has blocks.
inline const char* needs_tiles_in_grid(const GemmArgs& p) {
  constexpr int64_t kLeastTile = 64, kMostBlocks = 0x7fffffff;
  const bool fits = ceil_div(p.m, kLeastTile) * ceil_div(p.n, kLeastTile) * p.batch <= kMostBlocks;
  return fits ? nullptr : "needs fewer than 2^31 tiles of 64 x 64";
}

// d = a b of row-major operands, 16 bytes an access.
inline const char* needs_packed_rows(const GemmArgs& p) {
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_row_major(p)) return reason;
  return needs_packs_16(p);
}

// The same of 16-bit operands.
inline const char* takes_nn(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  return needs_packed_rows(p);
}

// The same with b column-major.
inline const char* takes_tn(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_b_column_major(p)) return reason;
  return needs_packs_16(p);
}

// For rungs written with CuTe, which are compiled where the build finds the headers of CUTLASS.
inline const char* needs_cutlass(const GemmArgs&) {
#ifdef WARPSMITH_CUTLASS
  return nullptr;
#else
  return "was built without the headers of CUTLASS: pip install 'warpsmith[cutlass]'";
#endif
}

}  // namespace warpsmith
