// Softmax, the row held in registers by as many lanes as it needs, up to a whole block.
//   Against `shared`: nothing is written to shared memory and read back, accesses are 128 bits wide, and short rows share a
//   warp. Blocks take their places while the kernel before ends. Bound: DRAM, until one row fills a
//   multiprocessor.
#include "softmax/softmax/row.cuh"

namespace warpsmith {
namespace {

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a, [&]<class T, class Result>() { launch_row(Softmax<T, Result>(a), stream, RowTiles{}); });
}

const char* takes(const SoftmaxArgs& a) {
  return unmet({needs_packs(a), needs_grid_rows(a.rows), needs_row_bytes<kMostRowBytes>(a.cols, a.dtype)});
}

const Register<SoftmaxArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
