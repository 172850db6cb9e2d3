// Gradient of nearest upsampling to twice the height and width of contiguous rows.
//   Against `naive`: nothing is looked for. A thread reads a pack of two rows each, adds up squares of four values, and
//   writes half a pack. Bound: DRAM.
#include "device/convert.h"
#include "host/registry.h"
#include "vision/upsample_nearest2d/backward/upsample_nearest2d_backward.h"
#include "vision/upsample_nearest2d/place.cuh"

namespace warpsmith {
namespace {

constexpr int kReadBytes = 16;

template <class T>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_backward_double_kernel(const __grid_constant__ UpsampleBackwardArgs a,
                                              const __grid_constant__ ImageGrid grid) {
  constexpr int kWidth = kPack<T>;
  const int64_t i = upsample_thread();
  if (i >= grid.threads) return;
  const int64_t row = grid.cols.quotient_as(i),
                packs = static_cast<int64_t>(grid.cols.divisor);  // of dx, of all images
  const T* grad = static_cast<const T*>(a.from) + (row * packs + i) * kWidth;
  Pack<T> upper, lower;
  load<Cache::streaming>(upper, grad);
  load<Cache::streaming>(lower, grad + packs * kWidth);
  float above[kWidth], below[kWidth];
  to_float(above, upper);
  to_float(below, lower);
  Vec<T, kWidth / 2> half;
#pragma unroll
  for (int k = 0; k < kWidth / 2; ++k) {
    half[k] = from_float<T>(above[2 * k] + above[2 * k + 1] + below[2 * k] + below[2 * k + 1]);
  }
  store(static_cast<T*>(a.to) + i * (kWidth / 2), half);
}

const char* takes(const UpsampleBackwardArgs& a) { return needs_doubled_rows(a, kReadBytes); }

void launch(const UpsampleBackwardArgs& a, cudaStream_t stream) {
  const ImageGrid grid(a.outer, a.h, a.out_w / upsample_width(a), 1);
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&upsample_nearest2d_backward_double_kernel<T>>({grid.blocks(), kUpsampleThreads}, stream, a,
                                                                     grid);
  });
}

const Register<UpsampleBackwardArgs> registered{"double", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
