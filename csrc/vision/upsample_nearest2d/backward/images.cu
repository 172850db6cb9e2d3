// Gradient of nearest upsampling, values of several images to a thread.
//   Against `naive`: rows and columns, which are the same in all images, are looked for once for four of them, whose loads
//   are on their way together. Any layout. Bound: DRAM.
#include "device/convert.h"
#include "host/registry.h"
#include "vision/upsample_nearest2d/backward/region.cuh"

namespace warpsmith {
namespace {

constexpr int kImages = 4;

template <class T, class Int>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_backward_images_kernel(const __grid_constant__ UpsampleBackwardArgs a,
                                              const __grid_constant__ ImageGrid grid, const UpsampleInverse inverse) {
  const Int i = upsample_thread<Int>();
  if (i >= static_cast<Int>(grid.threads)) return;
  const ImagePlace<Int> at = image_place(grid, i);
  const UpsampleRegion<Int> of(a, inverse, at);
  const int64_t first = int64_t{at.outer} * kImages, line = a.out_w * a.inner;
  const int images = static_cast<int>(min(a.outer - first, int64_t{kImages}));
  const Int cols = of.end_col - of.first_col;
  const T* from[kImages];  // in [out_h, out_w, inner] each; past the last image, that one again
  from[0] = static_cast<const T*>(a.from) + (first * a.out_h + of.first_row) * line + of.first_col * a.inner + at.inner;
#pragma unroll
  for (int u = 1; u < kImages; ++u) from[u] = u < images ? from[u - 1] + a.out_h * line : from[u - 1];
  float sums[kImages] = {};
#pragma unroll 1
  for (Int row = of.first_row; row < of.end_row; ++row) {
#pragma unroll 1
    for (Int col = 0; col < cols; ++col) {
#pragma unroll
      for (int u = 0; u < kImages; ++u) {
        sums[u] += to_float(*from[u]);
        from[u] += a.inner;
      }
    }
#pragma unroll
    for (int u = 0; u < kImages; ++u) from[u] += line - cols * a.inner;
  }
  const int64_t size = a.h * a.w * a.inner;
  // [outer, h, w, inner]
  T* to = static_cast<T*>(a.to) + first * size + (at.row * a.w + at.col) * a.inner + at.inner;
#pragma unroll
  for (int u = 0; u < kImages; ++u) {
    if (u < images) to[u * size] = from_float<T>(sums[u]);
  }
}

// With fewer, threads of several values each do not fill a large GPU.
constexpr int64_t kLeastThreads = 1 << 18;

int64_t threads_of(const UpsampleBackwardArgs& a) { return ceil_div(a.outer, kImages) * a.h * a.w * a.inner; }

bool suits(const UpsampleBackwardArgs& a) { return a.outer >= kImages && threads_of(a) >= kLeastThreads; }

void launch(const UpsampleBackwardArgs& a, cudaStream_t stream) {
  const ImageGrid grid(ceil_div(a.outer, kImages), a.h, a.w, a.inner);
  dispatch_float(a.dtype, [&]<class T>() {
    dispatch_counts(a, grid, [&]<class Int>() {
      warpsmith::launch<&upsample_nearest2d_backward_images_kernel<T, Int>>({grid.blocks(), kUpsampleThreads}, stream,
                                                                            a, grid, UpsampleInverse(a));
    });
  });
}

const Register<UpsampleBackwardArgs> registered{"images", /*min_sm=*/80, takes_any, launch, suits};

}  // namespace
}  // namespace warpsmith
