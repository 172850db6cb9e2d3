// Transpose, a thread for each element of x.
//   Neighbouring threads read neighbours and write to as many lines. Bound: stores, each of a sector of its own.
#include "host/registry.h"
#include "transform/transpose/flat.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kFlatThreads)
    transpose_col2row_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ FlatIndex index) {
  flat_col2row<T, 1>(a, index);
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const FlatIndex index(a, a.cols, a.rows);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_col2row_kernel<T>>({flat_grid(index), kFlatThreads}, stream, a, index);
  });
}

const Register<TransposeArgs> registered{"col2row", /*min_sm=*/80, takes_any_strides, launch};

}  // namespace
}  // namespace warpsmith
