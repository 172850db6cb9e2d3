// Nearest upsampling, 16 bytes of the result to a thread.
//   Against `naive`: where channels are neighbours, packs of them move whole; where rows are contiguous, a pack is put
//   together from what its columns come from, and stored at once. Bound: DRAM for channels; for rows the loads, one a value.
#include "host/registry.h"
#include "vision/upsample_nearest2d/place.cuh"

namespace warpsmith {
namespace {

__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_pack_channels_kernel(const __grid_constant__ UpsampleArgs a,
                                            const __grid_constant__ ImageGrid grid) {
  const int64_t i = upsample_thread();
  if (i >= grid.threads) return;
  const ImagePlace at = image_place(grid, i);
  const int64_t row = upsample_source(at.row, a.scale_h, a.h), col = upsample_source(at.col, a.scale_w, a.w);
  const uint4* x = static_cast<const uint4*>(a.from);  // [outer, h, w, packs]
  const int64_t packs = static_cast<int64_t>(grid.inner.divisor);
  ptx::store_streaming(static_cast<uint4*>(a.to) + i, x[((at.outer * a.h + row) * a.w + col) * packs + at.inner]);
}

template <class T>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_pack_kernel(const __grid_constant__ UpsampleArgs a, const __grid_constant__ ImageGrid grid) {
  constexpr int kWidth = kPack<T>;
  const int64_t i = upsample_thread();
  if (i >= grid.threads) return;
  const ImagePlace at = image_place(grid, i);
  const T* x = static_cast<const T*>(a.from) + (at.outer * a.h + upsample_source(at.row, a.scale_h, a.h)) * a.w;  // [w]
  Pack<T> pack;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) pack[k] = x[upsample_source(at.col * kWidth + k, a.scale_w, a.w)];
  store<Cache::streaming>(static_cast<T*>(a.to) + i * kWidth, pack);
}

void launch(const UpsampleArgs& a, cudaStream_t stream) {
  const int width = upsample_width(a);
  if (a.inner > 1) {
    const ImageGrid grid(a.outer, a.out_h, a.out_w, a.inner / width);
    warpsmith::launch<&upsample_nearest2d_pack_channels_kernel>({grid.blocks(), kUpsampleThreads}, stream, a, grid);
    return;
  }
  const ImageGrid grid(a.outer, a.out_h, a.out_w / width, 1);
  dispatch_image(a.dtype, [&]<class T>() {
    warpsmith::launch<&upsample_nearest2d_pack_kernel<T>>({grid.blocks(), kUpsampleThreads}, stream, a, grid);
  });
}

const Register<UpsampleArgs> registered{"pack", /*min_sm=*/80, needs_result_packs, launch};

}  // namespace
}  // namespace warpsmith
