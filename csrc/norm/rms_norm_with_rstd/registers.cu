// RMS norm with rstd, the row held in registers.
//   Against `pack`: x is read once, as `registers` of rms_norm does, and blocks take their places while the kernel before
//   ends. Bound: DRAM, until one row fills a multiprocessor.
#include "norm/rms_norm_with_rstd/row.cuh"

namespace warpsmith {
namespace {

void launch(const RmsNormWithRstdArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype,
               [&]<class T, class W>() { launch_row(RmsNormWithRstd<T, W>(a), stream, RowTiles{}); });
}

const char* takes(const RmsNormWithRstdArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostRowBytes ? nullptr : "needs rows of at most 128 KiB";
}

const Register<RmsNormWithRstdArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
