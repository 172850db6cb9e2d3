// Matrix product, a thread per 8 x 8 values, two buffers of shared memory.
//   Against `bank_conflict_free`: the next slice of k, loaded while this one is multiplied, is stored to the other buffer,
//   so that one barrier a slice is left. Bound: barriers, and the instructions around the multiplications.
#include "gemm/double_buffered.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_types(p, [&]<class T, class Acc>() {
    launch_double_buffered<T, Acc, FromHalves<PackedTile<8, 8, 2 * kPack<T>>>>(p, stream);
  });
}

const Register<GemmArgs> registered{"double_buffered", /*min_sm=*/80, needs_packed_rows, launch};

}  // namespace
}  // namespace warpsmith
