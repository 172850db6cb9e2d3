// Gradient of nearest upsampling, a pack of channels to a thread.
//   Against `naive`: rows and columns are looked for once in 16 bytes, and each load brings as many. Bound: DRAM.
#include "device/convert.h"
#include "host/registry.h"
#include "vision/upsample_nearest2d/backward/region.cuh"

namespace warpsmith {
namespace {

constexpr int kTogether = 2;

template <class T, class Int>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_backward_pack_kernel(const __grid_constant__ UpsampleBackwardArgs a,
                                            const __grid_constant__ ImageGrid grid, const UpsampleInverse inverse) {
  constexpr int kWidth = kPack<T>;
  const Int i = upsample_thread<Int>();
  if (i >= static_cast<Int>(grid.threads)) return;
  const ImagePlace<Int> at = image_place(grid, i);
  const UpsampleRegion<Int> of(a, inverse, at);
  // in [outer, out_h, out_w, inner]
  const T* row = static_cast<const T*>(a.from) + int64_t{at.inner} * kWidth +
                 ((at.outer * a.out_h + of.first_row) * a.out_w + of.first_col) * a.inner;
  float sum[kWidth] = {};
#pragma unroll 1
  for (Int rows = of.end_row - of.first_row; rows > 0; --rows) {
    const T* grad = row;
#pragma unroll 1
    for (Int cols = of.end_col - of.first_col; cols > 0; cols -= kTogether) {
      Pack<T> packs[kTogether] = {};
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (u < cols) load<Cache::streaming>(packs[u], grad + u * a.inner);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        float values[kWidth];
        to_float(values, packs[u]);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) sum[k] += values[k];
      }
      grad += kTogether * a.inner;
    }
    row += a.out_w * a.inner;
  }
  Pack<T> pack;
  from_float(pack, sum);
  store(static_cast<T*>(a.to) + int64_t{i} * kWidth, pack);
}

const char* takes(const UpsampleBackwardArgs& a) { return needs_channel_packs(a); }

void launch(const UpsampleBackwardArgs& a, cudaStream_t stream) {
  const ImageGrid grid(a.outer, a.h, a.w, a.inner / upsample_width(a));
  dispatch_float(a.dtype, [&]<class T>() {
    dispatch_counts(a, grid, [&]<class Int>() {
      warpsmith::launch<&upsample_nearest2d_backward_pack_kernel<T, Int>>({grid.blocks(), kUpsampleThreads}, stream, a,
                                                                          grid, UpsampleInverse(a));
    });
  });
}

const Register<UpsampleBackwardArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
