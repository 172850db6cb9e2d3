// Transpose, a thread for each element of the result.
//   Against `col2row`: stores are of whole lines, and it is loads that bring a sector each; neighbours' sectors are found
//   in the caches again. Takes any strides. Bound: the number of sectors that loads ask for.
#include "host/registry.h"
#include "transform/transpose/flat.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kFlatThreads)
    transpose_row2col_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ FlatIndex index) {
  flat_row2col<T, 1>(a, index);
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  const FlatIndex index(a, a.rows, a.cols);
  dispatch_size(a.dtype, [&]<class T>() {
    warpsmith::launch<&transpose_row2col_kernel<T>>({flat_grid(index), kFlatThreads}, stream, a, index);
  });
}

const Register<TransposeArgs> registered{"row2col", /*min_sm=*/80, takes_any_strides, launch};

}  // namespace
}  // namespace warpsmith
