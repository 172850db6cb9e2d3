// GEMV, four rows per block.
//   Against `rows`: all threads of a block share its rows, each with a few packs of each, so that blocks are many and
//   short and each sweeps over one stretch of memory; two vectors are served by one read of the weights. Blocks take their
//   places while the kernel before ends.
//   Occupancy: four blocks of 256 threads x 64 registers, where rows are short eight of 128; for two vectors two blocks
//   of 256 x up to 114 registers, or four of 128 (in 16 bits five).
//   Bound: DRAM.
#include "gemm/gemv/few_vectors.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemvArgs& a, cudaStream_t stream) {
  launch_few_vectors(a, /*slices=*/1, a.k * size_of(a.dtype) <= kShortRowBytes, stream);
}

// Shorter rows leave threads without a pack; more vectors pay for being kept in shared memory.
bool suits(const GemvArgs& a) {
  return a.vectors <= most_block_vectors(size_of(a.dtype)) && a.k * size_of(a.dtype) >= 2048;
}

const Register<GemvArgs> registered{"block", /*min_sm=*/80, needs_packs_in_f32, launch, suits};

}  // namespace
}  // namespace warpsmith
