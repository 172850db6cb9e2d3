// Scaled masked softmax backward, grad and y in the registers of a block.
//   Against `warp`: rows that a warp cannot hold, joined through shared memory behind one barrier. Bound: DRAM, until a
//   row fills a multiprocessor.
#include "softmax/logits.h"
#include "softmax/scaled_masked_softmax/backward/row.cuh"

namespace warpsmith {
namespace {

using Tiles =
    std::tuple<LogitTile<256, 0, 2, 5>, LogitTile<512, 0, 2, 3>, LogitTile<512, 0, 4, 2>, LogitTile<1024, 0, 4, 1>>;
constexpr int64_t kWarpBytes = 4096;
static_assert(std::tuple_element_t<3, Tiles>::most_packs * 16 == kBlockBytes);

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    scaled_masked_softmax_backward_block_kernel(const ScaledMaskedSoftmaxBackwardRows<T> v) {
  __shared__ float partial[kWarp];
  softmax_backward_row<Tile>(v, [&](float sum) { return block_sum(sum, partial); });
}

const char* takes(const ScaledMaskedSoftmaxBackwardArgs& a) {
  return unmet({needs_packs(a), needs_grid_rows(a.rows), needs_row_bytes<kBlockBytes>(a.cols, a.dtype)});
}

bool suits(const ScaledMaskedSoftmaxBackwardArgs& a) { return a.cols * size_of(a.dtype) > kWarpBytes; }

void launch(const ScaledMaskedSoftmaxBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    launch_smallest(a.rows, a.cols / kPack<T>, Tiles{}, [&]<class Tile>(const LaunchConfig& config) {
      warpsmith::launch<&scaled_masked_softmax_backward_block_kernel<T, Tile>>(config, stream,
                                                                               ScaledMaskedSoftmaxBackwardRows<T>(a));
    });
  });
}

const Register<ScaledMaskedSoftmaxBackwardArgs> registered{"block", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
