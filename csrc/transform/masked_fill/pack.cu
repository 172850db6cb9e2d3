// One value in the place of those that a mask names, 16 bytes of values and of their mask an access, where both lie alike.
//   Against `naive`: no place is looked for, and as many values as fit an access go together. Bound: DRAM.
#include "device/start_early.h"
#include "device/vec.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"
#include "transform/masked_fill/masked_fill.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPacks = 2;

template <class Word>
__global__ void __launch_bounds__(kThreads) masked_fill_pack_kernel(const MaskedFillArgs a) {
  start_early();
  constexpr int kWidth = 16 / static_cast<int>(sizeof(Word));
  const int64_t first = int64_t{blockIdx.x} * kThreads * kPacks + threadIdx.x;
  Pack<Word> packs[kPacks];
  Vec<uint8_t, kWidth> masks[kPacks];
  // load
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = (first + i * kThreads) * kWidth;
    if (at >= a.n) continue;
    load<Cache::streaming>(packs[i], static_cast<const Word*>(a.x) + at);
    load(masks[i], a.mask + at);
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

const char* takes(const MaskedFillArgs& a) {
  const int width = 16 / a.size;
  const auto aligned = [](const void* data, int to) { return reinterpret_cast<uintptr_t>(data) % to == 0; };
  const bool packs = a.n % width == 0 && aligned(a.x, 16) && aligned(a.mask, width);
  return unmet({a.same ? nullptr : "needs a mask that lies as x does",
                packs ? nullptr : "needs x and its mask in whole packs, aligned",
                ceil_div(a.n, kThreads) <= kMostRows ? nullptr : "needs at most 2^31 - 1 blocks"});
}

void launch(const MaskedFillArgs& a, cudaStream_t stream) {
  const int64_t blocks = ceil_div(a.n * a.size / 16, int64_t{kThreads} * kPacks);
  const LaunchConfig config{.grid = dim3(static_cast<unsigned>(blocks)), .block = kThreads, .early = true};
  if (a.size == 2) {
    warpsmith::launch<&masked_fill_pack_kernel<uint16_t>>(config, stream, a);
  } else {
    warpsmith::launch<&masked_fill_pack_kernel<uint32_t>>(config, stream, a);
  }
}

const Register<MaskedFillArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
