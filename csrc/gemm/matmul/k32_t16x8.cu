// Matrix product of 16-bit operands, a thread per 16 x 8 values, slices of 32 k.
//   Against `k32_t8x8`: a value of b is multiplied 16 times and a tile of 256 x 128 is read less often. Sums in
//   f16 leave registers for two blocks on a multiprocessor; in f32, they and 97 KB of shared memory do for one.
//   Also in f32, the parts of a slice pass by a loop: all 4,096 multiplications of a thread do not fit the instruction cache.
//   Bound: issue slots; barriers where one block is alone.
#include "gemm/double_buffered.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p,
                     [&]<class T, class Acc>() { launch_double_buffered<T, Acc, PackedTile<16, 8, 32>>(p, stream); });
}

const Register<GemmArgs> registered{"k32_t16x8", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
