// Products of layers with what follows them, as every kernel of the folder is given them. With x [m, k] and w [k, n]:
//   epilogue   d = activation(alpha x w + bias) + residual
//   gate       d = activation(x w + bias) * (x up + up_bias)
//   heads      x w + bias, whose columns are the heads of q, k and v, each written where it belongs
//   add        d += x w, in f32
//   gradient   x w, and the sums of x along k: gradients of a weight and of a bias
// kernels/warpsmith/gemm/fused_problem.py says the conditions in the same words.
#pragma once

#include "gemm/gemm.h"

namespace warpsmith {

enum class Ends : int { epilogue, gate, heads, add, gradient };

// The results of `heads`: q, k and v, [sequences, rows, heads, size], or [sequences, heads, rows, size].
struct HeadResults {
  void* data[3];
  int64_t heads[3];
  int64_t size, rows;  // of a head; of a sequence
  bool heads_first;
};

// Of GemmArgs, x is a, row-major, w is b, c is nothing, and there is one product.
struct FusedArgs : GemmArgs {
  Ends ends;
  Matrix up;                   // [k, n], in the order of b
  const void *bias, *up_bias;  // [n], aligned to 16 bytes; nullptr: none
  bool wide_bias;              // they are f32, whatever the operands are
  const void* residual;        // [m, n], contiguous, aligned to 16 bytes; nullptr: none
  void* before;                // [m, n]: what goes into the activation, where it is asked for,
  void* before_up;             // and what a gate is multiplied by
  unsigned* amax;              // [m], of rows of d, as bits of f32; nullptr: not asked for
  HeadResults heads;
  void* row_sums;       // of `gradient`, [m], of x; f32 where wide_bias says so, otherwise as the operands
  float* partial_rows;  // of slices of k, [slices][m]
};

// --- conditions -------------------------------------------------------------------------------------------------

// Of x, the weights and the rows of results, in accesses of 16 bytes.
inline const char* needs_packs_of_all(const FusedArgs& p) {
  const bool whole = operands_in_packs(p, 16) && (p.ends != Ends::gate || in_packs(p.up, p.k, p.n, p.dtype, 16)) &&
                     reinterpret_cast<uintptr_t>(p.d) % 16 == 0;
  return whole ? nullptr : "needs operands and results in packs of 16 bytes";
}

inline const char* needs_heads_of(const FusedArgs& p, int64_t values, const char* reason) {
  return p.ends != Ends::heads || p.heads.size % values == 0 ? nullptr : reason;
}

inline bool of_gradients(const FusedArgs& p) { return p.ends == Ends::add || p.ends == Ends::gradient; }

// x along k; of gradients of weights, x and w both along what is no sum.
inline const char* needs_layout_of_layers(const FusedArgs& p) {
  if (!of_gradients(p)) return p.a.order == Order::rows ? nullptr : "needs x row-major";
  return p.a.order == Order::columns && p.b.order == Order::rows ? nullptr : "needs a column-major and b row-major";
}

// Whether slices of k may be added up by a second kernel.
inline bool may_split(const FusedArgs& p) { return p.ends == Ends::epilogue || of_gradients(p); }

}  // namespace warpsmith
