// Nearest upsampling, 16 bytes of the result to a thread.
//   Against `naive`: where channels are neighbours, packs of them move whole; where rows are contiguous, a pack is put
//   together from what its columns come from, and stored at once. Bound: DRAM for channels; for rows the loads, one a value.
#include "host/registry.h"
#include "vision/upsample_nearest2d/place.cuh"

namespace warpsmith {
namespace {

template <class Int>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_pack_channels_kernel(const __grid_constant__ UpsampleArgs a,
                                            const __grid_constant__ ImageGrid grid) {
  const Int i = upsample_thread<Int>();
  if (i >= static_cast<Int>(grid.threads)) return;
  const ImagePlace<Int> at = image_place(grid, i);
  const Int row = upsample_source(at.row, a.scale_h, static_cast<Int>(a.h)),
            col = upsample_source(at.col, a.scale_w, static_cast<Int>(a.w));
  const uint4* x = static_cast<const uint4*>(a.from);  // [outer, h, w, packs]
  const int64_t packs = static_cast<int64_t>(grid.inner.divisor);
  ptx::store_streaming(static_cast<uint4*>(a.to) + i, x[((at.outer * a.h + row) * a.w + col) * packs + at.inner]);
}

template <class T, class Int>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_pack_kernel(const __grid_constant__ UpsampleArgs a, const __grid_constant__ ImageGrid grid) {
  constexpr int kWidth = kPack<T>;
  const Int i = upsample_thread<Int>(), w = static_cast<Int>(a.w);
  if (i >= static_cast<Int>(grid.threads)) return;
  const ImagePlace<Int> at = image_place(grid, i);
  const Int row = upsample_source(at.row, a.scale_h, static_cast<Int>(a.h));
  const T* x = static_cast<const T*>(a.from) + (at.outer * a.h + row) * a.w;  // [w]
  Pack<T> pack;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) pack[k] = x[upsample_source(at.col * kWidth + k, a.scale_w, w)];
  store<Cache::streaming>(static_cast<T*>(a.to) + int64_t{i} * kWidth, pack);
}

void launch(const UpsampleArgs& a, cudaStream_t stream) {
  const int width = upsample_width(a);
  if (a.inner > 1) {
    const ImageGrid grid(a.outer, a.out_h, a.out_w, a.inner / width);
    return dispatch_counts(a, grid, [&]<class Int>() {
      warpsmith::launch<&upsample_nearest2d_pack_channels_kernel<Int>>({grid.blocks(), kUpsampleThreads}, stream, a,
                                                                       grid);
    });
  }
  const ImageGrid grid(a.outer, a.out_h, a.out_w / width, 1);
  dispatch_image(a.dtype, [&]<class T>() {
    dispatch_counts(a, grid, [&]<class Int>() {
      warpsmith::launch<&upsample_nearest2d_pack_kernel<T, Int>>({grid.blocks(), kUpsampleThreads}, stream, a, grid);
    });
  });
}

const Register<UpsampleArgs> registered{"pack", /*min_sm=*/80, needs_result_packs, launch};

}  // namespace
}  // namespace warpsmith
