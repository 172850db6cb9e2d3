// Gradient of softmax, rows that begin anywhere streamed through a block or a cluster.
//   Against `warp`: both rows are read once however long they are, and in packs between 16-byte borders, ahead while those
//   before are finished. Bound: DRAM.
#include "row/stream.cuh"
#include "softmax/softmax/backward/resident.cuh"

namespace warpsmith {
namespace {

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  visit_gradients(
      a, [&]<class T, class Gradient>() { launch_stream(SoftmaxBackward<T, Gradient>(a), stream, StreamTiles2{}); });
}

const char* takes(const SoftmaxBackwardArgs& a) {
  return unmet({needs_rows(a), needs_grid_rows(a.rows), needs_row_bytes<kMostStreamBytes>(a.cols, a.dtype)});
}

// Shorter rows fit the registers of a warp.
bool suits(const SoftmaxBackwardArgs& a) { return a.cols > 1024; }

const Register<SoftmaxBackwardArgs> registered{"peeled", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
