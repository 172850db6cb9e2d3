// Matrix product with few rows, or with one column: bound by the larger operand, which is streamed once.
//   Against `mma_peak`: no tile is filled with rows that are not there. One vector or two are multiplied as GEMV's
//   `block` does it, more as its `skinny` does; see gemm/skinny_block.cuh and gemm/skinny_ring.cuh. What is added to a
//   product is on its way while the product is summed; products alone have kernels of their own, as GEMV has them.
//   Bound: DRAM.
#include <utility>

#include "gemm/epilogue.cuh"
#include "gemm/gemm.h"
#include "gemm/skinny_block.cuh"
#include "gemm/skinny_ring.cuh"
#include "gemm/split.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

// With what is done to the product, whose rows are the vectors here, and whose columns the rows of the weights.
struct FinishedArgs : SkinnyArgs {
  GemmArgs product;
};

template <class X>
__device__ __forceinline__ float read_ahead(const FinishedArgs& a, int vector, int64_t row) {
  return addend_at<X>(a.product, 0, vector, row);
}

template <class X>
__device__ __forceinline__ X finish_sum(const FinishedArgs& a, int64_t /*row*/, float sum, float ahead) {
  return finish<X>(a.product, sum, ahead);
}

// d^T = b^T a^T. A single row or column is contiguous as either.
GemmArgs transposed(GemmArgs p) {
  const auto flip = [](Matrix& x) { x.order = x.order == Order::rows ? Order::columns : Order::rows; };
  std::swap(p.a, p.b);
  flip(p.a);
  flip(p.b);
  std::swap(p.m, p.n);
  std::swap(p.c.row, p.c.col);
  return p;
}

const char* takes(const GemmArgs& p) {
  constexpr int64_t kMost = 0x7fffffff;
  if (const char* reason = needs_one_product(p)) return reason;
  if (const char* reason = needs_b_column_major(p)) return reason;
  if (p.m > kMostVectors && p.n > 1) return "needs at most 16 rows, or one column";
  if (std::max({p.m, p.n, p.k}) > kMost) return "needs sizes of at most 2^31 - 1";
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_f32_accumulator(p);
}

void launch(const GemmArgs& call, cudaStream_t stream) {
  // The columns of b are the weights, the rows of a the vectors.
  const GemmArgs p = call.m > kMostVectors ? transposed(call) : call;
  const bool ring = p.m > kMostBlockVectors;
  const int64_t slices = ring ? skinny_ring_slices(p.n, p.k * size_of(p.dtype), p.sm_count) : 1;
  const int splits = static_cast<int>(std::min(slices, most_splits(p)));
  const SkinnyArgs sums{
      .a = p.b.data,
      .x = p.a.data,
      .y = p.d,
      .scale = nullptr,
      .partial = splits > 1 ? static_cast<float*>(p.workspace) : nullptr,
      .m = p.n,
      .k = p.k,
      .vectors = static_cast<int>(p.m),
      .splits = splits,
      .a_row = p.b.ld,
      .x_row = p.a.ld,
      .y_row = p.n,
      .scale_step = 0,
  };
  dispatch_float(p.dtype, [&]<class T>() {
    const auto launch_args = [&](const auto& args) {
      if (ring) return launch_skinny_ring<T, T>(args, p.sm_count, stream);
      launch_few_vectors<T>(args, stream);
    };
    needs_product_alone(p) == nullptr ? launch_args(sums) : launch_args(FinishedArgs{sums, p});
  });
}

// Shorter rows leave warps without a share.
bool suits(const GemmArgs& p) { return p.k * size_of(p.dtype) >= 8 * kRingRowBytes; }

const Register<GemmArgs> registered{"skinny", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
