// GEMV with weights that lie column by column, through shared memory.
//   Against `columns`: weights pass through rings of asynchronous copies, once for all vectors; see
//   gemm/skinny_ring_columns.cuh. In 16 bits they meet the vectors on the tensor cores: a single one leaves seven eighths
//   of an mma unused, and DRAM is slower still.
//   Occupancy: one block of 8 warps, of up to 230 registers in 210 KB in f32, of up to 126 in 194 KB in 16 bits, for up to
//   8 vectors in 170 and 161 KB; where a block cannot have that much, of 4 warps of up to 238 or 133 registers in at most
//   81 KB, of which sm_80 holds two.
//   Bound: DRAM in 16 bits. Of its peak, 28672 rows with 16 vectors use 0.77 and cuBLAS, whose tiles are 256 rows high,
//   0.85: ours wait for their copies, of 128 bytes of a column each. In f32 with 16 vectors, issue slots.
#include "gemm/gemv/gemv.h"
#include "gemm/skinny_ring_columns.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const GemvArgs& a) {
  if (const char* reason = needs_column_packs(a)) return reason;
  return needs_f32_accumulator(a);
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  SkinnyArgs args = as_skinny(a, skinny_columns_slices(a));
  args.a_row = a.a_col;
  dispatch_float(a.dtype, [&]<class T>() { launch_skinny_columns<T>(args, a.sm_count, stream); });
}

// Two steps for every warp. A single row of weights is contiguous either way, and a single vector in f32 asks so little of
// registers that `columns` streams as fast.
bool suits(const GemvArgs& a) {
  return !has_contiguous_rows(a) && a.k >= 512 && (a.vectors > 1 || a.dtype != Dtype::f32);
}

const Register<GemvArgs> registered{"skinny_columns", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
