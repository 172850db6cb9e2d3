// Matrix product with few rows and b row-major, or with one column and a column-major.
//   Against `skinny`: the weights lie the other way round, column by column; see gemm/skinny_ring_columns.cuh. In 16 bits
//   tensor cores serve any number of rows, a single one too: DRAM is slower still.
//   Occupancy: one block of 8 warps, of up to 228 registers in 210 KB in f32, of up to 129 in 194 KB in 16 bits, for up to
//   8 rows in 170 and 161 KB; where a block cannot have that much, of 4 warps of up to 234 or 140 registers in at most
//   81 KB, of which sm_80 holds two.
//   Bound: DRAM in 16 bits. Of its peak, 28672 columns use 0.77 and cuBLAS, whose tiles are 256 columns wide, 0.85: ours
//   wait for their copies, of 128 bytes of a row of b each. In f32 with 16 rows of a, issue slots.
#include "gemm/skinny_product.cuh"
#include "gemm/skinny_ring_columns.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_free_order(p)) return reason;
  if (const char* reason = needs_result_like_operands(p)) return reason;
  if (const char* reason = needs_one_product(p)) return reason;
  if (const char* reason = needs_few_rows(p)) return reason;
  const GemmArgs few = with_few_rows(p);
  if (needs_row_major(few) != nullptr) return "needs a and b row-major, or for one column both column-major";
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_f32_accumulator(p);
}

void launch(const GemmArgs& call, cudaStream_t stream) {
  const GemmArgs p = with_few_rows(call);
  const ProductArgs args = skinny_args(p, skinny_columns_slices(p.n, p.k, size_of(p.dtype), p.sm_count));
  dispatch_float(p.dtype, [&]<class T>() { launch_skinny_columns<T>(args, p.sm_count, stream); });
}

// Two steps for every warp.
bool suits(const GemmArgs& p) { return p.k >= 512; }

const Register<GemmArgs> registered{"skinny_nn", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
