// GEMV of 16 bits with weights that lie column by column, through tensor cores.
//   Against `columns`: weights pass through rings of asynchronous copies in shared memory, once for all vectors; see
//   gemm/skinny_ring_columns.cuh. A single vector leaves seven eighths of an mma unused: DRAM is slower still.
//   Occupancy: one block of 8 warps of up to 116 registers in 194 KB, for up to 8 vectors in 161 KB; where a block cannot
//   have that much, of 4 warps of up to 133 registers in 77 or 63 KB, of which sm_80 holds two.
//   Bound: DRAM where all tiles are under way at once. Where blocks take several by turns it is slower, by what is not
//   profiled yet.
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
  dispatch_float(a.dtype, [&]<class T>() {
    if constexpr (sizeof(T) == 2) launch_skinny_columns<T>(args, a.sm_count, stream);
  });
}

// Two steps for every warp; a single row of weights is contiguous either way.
bool suits(const GemvArgs& a) { return !has_contiguous_rows(a) && a.k >= 512; }

const Register<GemvArgs> registered{"skinny_columns", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
