// Gradient of nearest upsampling, a value to a thread.
//   No atomics: a thread looks for the rows and columns that came of its value, and adds them up. Bound: the number of
//   loads.
#include "device/convert.h"
#include "host/registry.h"
#include "vision/upsample_nearest2d/backward/upsample_nearest2d_backward.h"
#include "vision/upsample_nearest2d/place.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_backward_naive_kernel(const __grid_constant__ UpsampleBackwardArgs a,
                                             const __grid_constant__ ImageGrid grid) {
  const int64_t i = upsample_thread();
  if (i >= grid.threads) return;
  const ImagePlace at = image_place(grid, i);
  const int64_t first_row = upsample_first(at.row, a.scale_h, a.h, a.out_h);
  const int64_t end_row = upsample_first(at.row + 1, a.scale_h, a.h, a.out_h);
  const int64_t first_col = upsample_first(at.col, a.scale_w, a.w, a.out_w);
  const int64_t end_col = upsample_first(at.col + 1, a.scale_w, a.w, a.out_w);
  const T* grad = static_cast<const T*>(a.from) + at.outer * a.out_h * a.out_w * a.inner + at.inner;
  float sum = 0.0f;
  for (int64_t row = first_row; row < end_row; ++row) {
    for (int64_t col = first_col; col < end_col; ++col) sum += to_float(grad[(row * a.out_w + col) * a.inner]);
  }
  static_cast<T*>(a.to)[i] = from_float<T>(sum);
}

void launch(const UpsampleBackwardArgs& a, cudaStream_t stream) {
  const ImageGrid grid(a.outer, a.h, a.w, a.inner);
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&upsample_nearest2d_backward_naive_kernel<T>>({grid.blocks(), kUpsampleThreads}, stream, a, grid);
  });
}

const Register<UpsampleBackwardArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
