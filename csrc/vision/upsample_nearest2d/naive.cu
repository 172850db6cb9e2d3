// Nearest upsampling, a value of the result to a thread.
//   Takes either layout and any scale. Bound: the number of accesses.
#include "host/registry.h"
#include "vision/upsample_nearest2d/place.cuh"

namespace warpsmith {
namespace {

template <class T, class Int>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_naive_kernel(const __grid_constant__ UpsampleArgs a, const __grid_constant__ ImageGrid grid) {
  const Int i = upsample_thread<Int>();
  if (i >= static_cast<Int>(grid.threads)) return;
  const ImagePlace<Int> at = image_place(grid, i);
  const Int row = upsample_source(at.row, a.scale_h, static_cast<Int>(a.h)),
            col = upsample_source(at.col, a.scale_w, static_cast<Int>(a.w));
  const T* x = static_cast<const T*>(a.from);  // [outer, h, w, inner]
  static_cast<T*>(a.to)[i] = x[((at.outer * a.h + row) * a.w + col) * a.inner + at.inner];
}

void launch(const UpsampleArgs& a, cudaStream_t stream) {
  const ImageGrid grid(a.outer, a.out_h, a.out_w, a.inner);
  dispatch_image(a.dtype, [&]<class T>() {
    dispatch_counts(a, grid, [&]<class Int>() {
      warpsmith::launch<&upsample_nearest2d_naive_kernel<T, Int>>({grid.blocks(), kUpsampleThreads}, stream, a, grid);
    });
  });
}

const Register<UpsampleArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
