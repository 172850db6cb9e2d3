// Matrix product with few rows, or with one column: bound by the larger operand, which is streamed once.
//   Against `mma_peak`: no tile is filled with rows that are not there. One vector or two are multiplied as GEMV's
//   `block` does it, more as its `skinny` does; see gemm/skinny_block.cuh and gemm/skinny_ring.cuh.
//   Bound: DRAM.
#include <utility>

#include "gemm/gemm.h"
#include "gemm/skinny_block.cuh"
#include "gemm/skinny_ring.cuh"
#include "gemm/split.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const GemmArgs& p) {
  constexpr int64_t kMost = 0x7fffffff;
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_b_column_major(p)) return reason;
  if (p.m > kMostVectors && p.n > 1) return "needs at most 16 rows, or one column";
  if (std::max({p.m, p.n, p.k}) > kMost) return "needs sizes of at most 2^31 - 1";
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_f32_accumulator(p);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  // The rows of one operand are the weights, those of the other the vectors.
  Matrix weights = p.b, vectors = p.a;
  int64_t rows = p.n, count = p.m;
  if (p.m > kMostVectors) {
    std::swap(weights, vectors);
    std::swap(rows, count);
  }
  const bool ring = count > kMostBlockVectors;
  const int64_t slices = ring ? skinny_ring_slices(rows, p.k * size_of(p.dtype), p.sm_count) : 1;
  const int splits = static_cast<int>(std::min(slices, most_splits(p)));
  const SkinnyArgs args{
      .a = weights.data,
      .x = vectors.data,
      .y = p.d,
      .scale = nullptr,
      .partial = splits > 1 ? static_cast<float*>(p.workspace) : nullptr,
      .m = rows,
      .k = p.k,
      .vectors = static_cast<int>(count),
      .splits = splits,
      .a_row = weights.ld,
      .x_row = vectors.ld,
      .y_row = rows,
      .scale_step = 0,
  };
  dispatch_float(p.dtype, [&]<class T>() {
    if (ring) return launch_skinny_ring<T, T>(args, p.sm_count, stream);
    launch_few_vectors<T>(args, stream);
  });
}

// Shorter rows leave warps without a share.
bool suits(const GemmArgs& p) { return p.k * size_of(p.dtype) >= 8 * kRingRowBytes; }

const Register<GemmArgs> registered{"skinny", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
