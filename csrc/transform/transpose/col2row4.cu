// Transpose, a thread for four neighbours of x.
//   Against `col2row`: one load brings four elements. Bound: the stores, which are as many as before.
#include "host/registry.h"
#include "transform/transpose/flat.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kFlatThreads)
    transpose_col2row4_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ FlatIndex index) {
  flat_col2row<T, kX4>(a, index);
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const FlatIndex index(a, a.cols / kX4, a.rows);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_col2row4_kernel<T>>({flat_grid(index), kFlatThreads}, stream, a, index);
  });
}

const char* takes(const TransposeArgs& a) { return unmet({needs_rank(a), needs_read_x4(a)}); }

const Register<TransposeArgs> registered{"col2row4", /*min_sm=*/80, takes, launch, suits_tiles};

}  // namespace
}  // namespace warpsmith
