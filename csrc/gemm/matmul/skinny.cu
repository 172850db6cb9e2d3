// Matrix product with few rows, or with one column: bound by the larger operand, which is streamed once.
//   Against `mma_peak`: no tile is filled with rows that are not there. One vector, in f32 two, is multiplied as
//   GEMV's `block` does it, more as its `skinny` does; see gemm/skinny_block.cuh and gemm/skinny_ring.cuh. What is added
//   to a product is on its way while the product is summed; products alone have kernels of their own, as GEMV has them.
//   Rows are dealt out to blocks alike.
//   Occupancy: one or two vectors, as GEMV's `block`; more, as its `skinny`.
//   Bound: DRAM.
#include "gemm/skinny_block.cuh"
#include "gemm/skinny_product.cuh"
#include "gemm/skinny_ring.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_free_order(p)) return reason;
  if (const char* reason = needs_result_like_operands(p)) return reason;
  if (const char* reason = needs_one_product(p)) return reason;
  if (const char* reason = needs_b_column_major(p)) return reason;
  if (const char* reason = needs_few_rows(p)) return reason;
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_f32_accumulator(p);
}

void launch(const GemmArgs& call, cudaStream_t stream) {
  const GemmArgs p = with_few_rows(call);
  const bool ring = p.m > most_block_vectors(size_of(p.dtype));
  const ProductArgs product = skinny_args(p, ring ? skinny_ring_slices(p.n, p.k * size_of(p.dtype), p.sm_count) : 1);
  dispatch_float(p.dtype, [&]<class T>() {
    const auto launch_args = [&](const auto& args) {
      if (ring) return launch_skinny_ring<T, T>(args, p.sm_count, stream);
      const bool halved = p.k * sizeof(T) <= kShortRowBytes;
      launch_few_vectors<T, most_block_vectors(sizeof(T))>(args, halved, stream);
    };
    needs_product_alone(p) == nullptr ? launch_args(static_cast<const SkinnyArgs&>(product)) : launch_args(product);
  });
}

// Shorter rows leave warps without a share.
bool suits(const GemmArgs& p) { return p.k * size_of(p.dtype) >= 8 * kRingRowBytes; }

const Register<GemmArgs> registered{"skinny", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
