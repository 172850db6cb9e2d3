// GEMV for few long rows: k is cut into slices.
//   Against `block`: the rows alone would leave multiprocessors without a block, so that several share a row, and a second
//   launch adds up what they leave, always in the same order.
//   Occupancy: four blocks of 256 threads x 64 registers; for two vectors two, of up to 114 registers.
//   Bound: the second launch, for which the GPU drains.
#include "gemm/gemv/few_vectors.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemvArgs& a, cudaStream_t stream) {
  launch_few_vectors(a, split_k_slices(a), /*halved=*/false, stream);
}

// As many rows as this fill the GPUs we know.
bool suits(const GemvArgs& a) {
  return a.vectors <= most_block_vectors(size_of(a.dtype)) && a.m <= 1024 && a.k * size_of(a.dtype) >= 16384;
}

const Register<GemvArgs> registered{"split_k", /*min_sm=*/80, needs_packs_in_f32, launch, suits};

}  // namespace
}  // namespace warpsmith
