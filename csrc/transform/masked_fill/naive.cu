// One value in the place of those that a mask names, a value a thread; masks that broadcast over up to four dimensions.
//   What the values stand for does not matter: those of one size are one kernel. Bound: accesses, and divisions that find a
//   value's place in the mask.
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"
#include "transform/masked_fill/places.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class Word>
__global__ void __launch_bounds__(kThreads) masked_fill_naive_kernel(const MaskedFillArgs a, const MaskPlaces places) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.n) return;
  const int64_t at = a.same ? i : places.of(a, i);
  const Word x = static_cast<const Word*>(a.x)[i];
  static_cast<Word*>(a.y)[i] = a.mask[at] != 0 ? static_cast<Word>(a.bits) : x;
}

const char* takes(const MaskedFillArgs& a) {
  return ceil_div(a.n, kThreads) <= kMostRows ? nullptr : "needs at most 2^31 - 1 blocks";
}

void launch(const MaskedFillArgs& a, cudaStream_t stream) {
  const MaskPlaces places(a);
  const LaunchConfig config{.grid = dim3(static_cast<unsigned>(ceil_div(a.n, kThreads))), .block = kThreads};
  if (a.size == 2) {
    warpsmith::launch<&masked_fill_naive_kernel<uint16_t>>(config, stream, a, places);
  } else {
    warpsmith::launch<&masked_fill_naive_kernel<uint32_t>>(config, stream, a, places);
  }
}

const Register<MaskedFillArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
