// Nearest upsampling to twice the height and width of contiguous rows.
//   Against `pack`: no index is rounded. A thread reads half a pack, writes each of its values twice, and the pack to two
//   rows. Bound: DRAM.
#include "host/registry.h"
#include "vision/upsample_nearest2d/place.cuh"

namespace warpsmith {
namespace {

constexpr int kReadBytes = 8;

// Each value of a word twice, in two words.
template <class T>
__device__ __forceinline__ void twice(uint32_t word, uint32_t& low, uint32_t& high) {
  if constexpr (sizeof(T) == 4) {
    low = high = word;
  } else {
    constexpr uint32_t kLow = sizeof(T) == 2 ? 0x1010 : 0x1100, kHigh = sizeof(T) == 2 ? 0x3232 : 0x3322;
    low = __byte_perm(word, 0, kLow);
    high = __byte_perm(word, 0, kHigh);
  }
}

template <class T>
__global__ void __launch_bounds__(kUpsampleThreads)
    upsample_nearest2d_double_kernel(const __grid_constant__ UpsampleArgs a, const __grid_constant__ ImageGrid grid) {
  const int64_t i = upsample_thread();
  if (i >= grid.threads) return;
  const uint2 half = static_cast<const uint2*>(a.from)[i];
  uint4 pack;
  twice<T>(half.x, pack.x, pack.y);
  twice<T>(half.y, pack.z, pack.w);
  const int64_t row = grid.cols.quotient_as(i), packs = static_cast<int64_t>(grid.cols.divisor);  // of x, of all images
  uint4* y = static_cast<uint4*>(a.to) + row * packs + i;  // its pack in the first of two rows
  ptx::store_streaming(y, pack);
  ptx::store_streaming(y + packs, pack);
}

const char* takes(const UpsampleArgs& a) { return needs_doubled_rows(a, kReadBytes); }

void launch(const UpsampleArgs& a, cudaStream_t stream) {
  const ImageGrid grid(a.outer, a.h, a.out_w / upsample_width(a), 1);
  dispatch_image(a.dtype, [&]<class T>() {
    warpsmith::launch<&upsample_nearest2d_double_kernel<T>>({grid.blocks(), kUpsampleThreads}, stream, a, grid);
  });
}

const Register<UpsampleArgs> registered{"double", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
