// Gradient of dropout at memory speed: 128-bit accesses past L1, two packs under way a thread.
//   Against `naive`: a byte of the mask serves eight elements, and the loads of both packs start before the first is
//   waited for. Bound: DRAM.
#include "device/convert.h"
#include "device/start_early.h"
#include "device/stream_policy.h"
#include "elementwise/dropout/backward/dropout_backward.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPacks = 2, kMinBlocks = 6, kByteBits = 8;

template <class T>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    dropout_backward_stream_kernel(const DropoutBackwardArgs a, const StreamPolicy l2) {
  start_early();
  constexpr int kWidth = kPack<T>;
  const T* grad = static_cast<const T*>(a.grad);                // [n]
  const auto* mask = reinterpret_cast<const uint8_t*>(a.mask);  // [ceil(n / 8)]
  T* dx = static_cast<T*>(a.dx);                                // [n]
  const int64_t packs = a.n / kWidth, first = int64_t{kThreads} * kPacks * blockIdx.x + threadIdx.x;
  Pack<T> pack[kPacks];
  uint32_t bits[kPacks];

  // load
  const uint64_t policy = l2.of_loads();
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = first + i * kThreads;
    if (at >= packs) continue;
    load_with_policy(pack[i], grad + at * kWidth, policy);
    bits[i] = mask[at * kWidth / kByteBits] >> (at * kWidth % kByteBits);
  }
  // scale, write
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = first + i * kThreads;
    if (at >= packs) continue;
    float values[kWidth];
    to_float(values, pack[i]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = bits[i] >> j & 1 ? values[j] * a.scale : 0.0f;
    from_float(pack[i], values);
    store<Cache::streaming>(dx + at * kWidth, pack[i]);
  }
  // what is no whole pack
  const int64_t last = packs * kWidth + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && last < a.n) {
    const bool kept = mask[last / kByteBits] >> (last % kByteBits) & 1;
    dx[last] = from_float<T>(kept ? to_float(grad[last]) * a.scale : 0.0f);
  }
}

const char* takes(const DropoutBackwardArgs& a) {
  return is_aligned(a.grad, 16) ? nullptr : "needs grad aligned to 16 bytes";
}

void launch(const DropoutBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(ceil_div(a.n, int64_t{kThreads} * kPacks * kPack<T>)));
    const LaunchConfig config{.grid = grid, .block = kThreads, .early = true};
    warpsmith::launch<&dropout_backward_stream_kernel<T>>(config, stream, a, StreamPolicy(a.n * size_of(a.dtype)));
  });
}

const Register<DropoutBackwardArgs> registered{"stream", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
