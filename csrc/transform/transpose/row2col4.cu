// Transpose, a thread for four neighbours of the result.
//   Against `row2col`: one store takes four elements away. Bound: the loads, which are as many as before.
#include "host/registry.h"
#include "transform/transpose/flat.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kFlatThreads)
    transpose_row2col4_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ FlatIndex index) {
  flat_row2col<T, kX4>(a, index);
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const FlatIndex index(a, a.rows / kX4, a.cols);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_row2col4_kernel<T>>({flat_grid(index), kFlatThreads}, stream, a, index);
  });
}

const char* takes(const TransposeArgs& a) { return unmet({needs_rank(a), needs_written_x4(a)}); }

const Register<TransposeArgs> registered{"row2col4", /*min_sm=*/80, takes, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
