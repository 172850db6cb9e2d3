// Matrix product of 16-bit operands, a thread per 8 x 8 values, eight values a load.
//   Against `thread_tile_pack`: the eight come in one load of 16 bytes, not in two of 8.
//   Bound: barriers, and registers: a thread holds several k of its eight rows.
#include "gemm/gemm.h"
#include "gemm/thread_tile_rows.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() { launch_row_tiles<T, Acc, VectorLoad<8, 8>>(p, stream); });
}

const Register<GemmArgs> registered{"thread_tile_pack8", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
