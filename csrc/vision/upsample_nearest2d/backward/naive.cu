// Gradient of nearest upsampling, a value to a thread.
//   No atomics: a thread looks for the rows and columns that came of its value, and adds them up. Bound: the search, which
//   takes longer than the loads.
#include "device/convert.h"
#include "host/registry.h"
#include "vision/upsample_nearest2d/backward/region.cuh"

namespace warpsmith {
namespace {

template <class T, class Int>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_backward_naive_kernel(const __grid_constant__ UpsampleBackwardArgs a,
                                             const __grid_constant__ ImageGrid grid, const UpsampleInverse inverse) {
  const Int i = upsample_thread<Int>();
  if (i >= static_cast<Int>(grid.threads)) return;
  const ImagePlace<Int> at = image_place(grid, i);
  const UpsampleRegion<Int> of(a, inverse, at);
  // [out_h, out_w, inner]
  const T* grad = static_cast<const T*>(a.from) + at.outer * a.out_h * a.out_w * a.inner + at.inner;
  float sum = 0.0f;
#pragma unroll 1
  for (Int row = of.first_row; row < of.end_row; ++row) {
#pragma unroll 1
    for (Int col = of.first_col; col < of.end_col; ++col) sum += to_float(grad[(row * a.out_w + col) * a.inner]);
  }
  static_cast<T*>(a.to)[i] = from_float<T>(sum);
}

void launch(const UpsampleBackwardArgs& a, cudaStream_t stream) {
  const ImageGrid grid(a.outer, a.h, a.w, a.inner);
  dispatch_float(a.dtype, [&]<class T>() {
    dispatch_counts(a, grid, [&]<class Int>() {
      warpsmith::launch<&upsample_nearest2d_backward_naive_kernel<T, Int>>({grid.blocks(), kUpsampleThreads}, stream, a,
                                                                           grid, UpsampleInverse(a));
    });
  });
}

const Register<UpsampleBackwardArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
