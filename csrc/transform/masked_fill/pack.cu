// One value in the place of those that a mask names, 16 bytes of values an access.
//   Against `naive`: as many values as fit an access go together, with as many bytes of the mask, or one that stands for all
//   of them; where a mask broadcasts, its place is looked for once an access. Bound: DRAM.
#include "device/start_early.h"
#include "device/vec.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"
#include "transform/masked_fill/places.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPacks = 2;

template <class Word>
__global__ void __launch_bounds__(kThreads)
    masked_fill_pack_kernel(const MaskedFillArgs a, const __grid_constant__ MaskPlaces places) {
  start_early();
  constexpr int kWidth = 16 / static_cast<int>(sizeof(Word));
  const bool one_for_all = !a.same && a.mask_strides[0] == 0;
  const int64_t first = int64_t{blockIdx.x} * kThreads * kPacks + threadIdx.x;
  Pack<Word> packs[kPacks];
  Vec<uint8_t, kWidth> masks[kPacks];
  // load
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = (first + i * kThreads) * kWidth;
    if (at >= a.n) continue;
    load<Cache::streaming>(packs[i], static_cast<const Word*>(a.x) + at);
    const uint8_t* mask = a.mask + (a.same ? at : places.of(a, at));
    if (one_for_all) {
      const uint8_t every = *mask;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) masks[i][j] = every;
    } else {
      load(masks[i], mask);
    }
  }
  // fill, write
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = (first + i * kThreads) * kWidth;
    if (at >= a.n) continue;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (masks[i][j] != 0) packs[i][j] = static_cast<Word>(a.bits);
    }
    store<Cache::streaming>(static_cast<Word*>(a.y) + at, packs[i]);
  }
}

// Whether no access reaches over the end of a row, and each finds its bytes of the mask together and aligned.
bool broadcasts_in_packs(const MaskedFillArgs& a, int width) {
  if (a.sizes[0] % width != 0) return false;
  if (a.mask_strides[0] == 0) return true;
  bool whole = a.mask_strides[0] == 1;
  for (int d = 1; d < kMaskDims; ++d) whole = whole && a.mask_strides[d] % width == 0;
  return whole && reinterpret_cast<uintptr_t>(a.mask) % width == 0;
}

const char* takes(const MaskedFillArgs& a) {
  const int width = 16 / a.size;
  const auto aligned = [](const void* data, int to) { return reinterpret_cast<uintptr_t>(data) % to == 0; };
  const bool packs = a.n % width == 0 && aligned(a.x, 16);
  const bool of_mask = a.same ? aligned(a.mask, width) : broadcasts_in_packs(a, width);
  return unmet({packs && of_mask ? nullptr : "needs x and its mask in whole packs, aligned",
                ceil_div(a.n, kThreads) <= kMostRows ? nullptr : "needs at most 2^31 - 1 blocks"});
}

void launch(const MaskedFillArgs& a, cudaStream_t stream) {
  const int64_t blocks = ceil_div(a.n * a.size / 16, int64_t{kThreads} * kPacks);
  const LaunchConfig config{.grid = dim3(static_cast<unsigned>(blocks)), .block = kThreads, .early = true};
  const MaskPlaces places(a);
  if (a.size == 2) {
    warpsmith::launch<&masked_fill_pack_kernel<uint16_t>>(config, stream, a, places);
  } else {
    warpsmith::launch<&masked_fill_pack_kernel<uint32_t>>(config, stream, a, places);
  }
}

const Register<MaskedFillArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
