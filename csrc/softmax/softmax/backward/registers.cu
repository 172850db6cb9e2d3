// Gradient of softmax, both rows held in registers by as many lanes as they need, up to a whole block.
//   Against `pack`: grad and y are read once, and blocks take their places while the kernel before ends. Bound: DRAM,
//   until one row fills a multiprocessor.
#include "softmax/softmax/backward/resident.cuh"

namespace warpsmith {
namespace {

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  visit_gradients(a,
                  [&]<class T, class Gradient>() { launch_row(SoftmaxBackward<T, Gradient>(a), stream, RowTiles2{}); });
}

const char* takes(const SoftmaxBackwardArgs& a) {
  return unmet({needs_packs(a), needs_grid_rows(a.rows), needs_row_bytes<kMostRowBytes2>(a.cols, a.dtype)});
}

const Register<SoftmaxBackwardArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
