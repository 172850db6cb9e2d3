// Gradient of nearest upsampling, a pack of channels to a thread.
//   Against `naive`: rows and columns are looked for once in 16 bytes, and each load brings as many. Bound: DRAM.
#include "device/convert.h"
#include "host/registry.h"
#include "vision/upsample_nearest2d/backward/upsample_nearest2d_backward.h"
#include "vision/upsample_nearest2d/place.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_backward_pack_kernel(const __grid_constant__ UpsampleBackwardArgs a,
                                            const __grid_constant__ ImageGrid grid) {
  constexpr int kWidth = kPack<T>;
  const int64_t i = upsample_thread();
  if (i >= grid.threads) return;
  const ImagePlace at = image_place(grid, i);
  const int64_t first_row = upsample_first(at.row, a.scale_h, a.h, a.out_h);
  const int64_t end_row = upsample_first(at.row + 1, a.scale_h, a.h, a.out_h);
  const int64_t first_col = upsample_first(at.col, a.scale_w, a.w, a.out_w);
  const int64_t end_col = upsample_first(at.col + 1, a.scale_w, a.w, a.out_w);
  const T* grad = static_cast<const T*>(a.from) + at.outer * a.out_h * a.out_w * a.inner + at.inner * kWidth;
  float sum[kWidth] = {};
  for (int64_t row = first_row; row < end_row; ++row) {
    for (int64_t col = first_col; col < end_col; ++col) {
      Pack<T> pack;
      float values[kWidth];
      load<Cache::streaming>(pack, grad + (row * a.out_w + col) * a.inner);
      to_float(values, pack);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum[k] += values[k];
    }
  }
  Pack<T> pack;
  from_float(pack, sum);
  store(static_cast<T*>(a.to) + i * kWidth, pack);
}

const char* takes(const UpsampleBackwardArgs& a) { return needs_channel_packs(a); }

void launch(const UpsampleBackwardArgs& a, cudaStream_t stream) {
  const ImageGrid grid(a.outer, a.h, a.w, a.inner / upsample_width(a));
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&upsample_nearest2d_backward_pack_kernel<T>>({grid.blocks(), kUpsampleThreads}, stream, a, grid);
  });
}

const Register<UpsampleBackwardArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
