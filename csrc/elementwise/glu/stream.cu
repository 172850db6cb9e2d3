// Gated linear unit at memory speed: two packs of each half on their way past L1.
//   Against `pack`: four loads start before the first is waited for, and nothing is kept in L1 that is read once. It takes
//   its place while the kernel before ends. Bound: DRAM.
#include "device/start_early.h"
#include "device/stream_policy.h"
#include "elementwise/glu/glu.h"
#include "elementwise/glu/halves.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPacks = 2, kMinBlocks = 4;

template <class T>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    glu_stream_kernel(const GluArgs g, const HalvesView v, const StreamPolicy l2) {
  start_early();
  constexpr int kWidth = kPack<T>;
  const int64_t first = int64_t{kThreads} * kPacks * blockIdx.x + threadIdx.x;
  Pack<T> a[kPacks], b[kPacks];

  // load
  const uint64_t policy = l2.of_loads();
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int64_t pack = first + j * kThreads;
    if (pack >= v.accesses) continue;
    const T* x = static_cast<const T*>(g.x) + v.first_half(pack) * kWidth;
    load_with_policy(a[j], x, policy);
    load_with_policy(b[j], x + v.per_half * kWidth, policy);
  }
  // gate, write
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int64_t pack = first + j * kThreads;
    if (pack >= v.accesses) continue;
    float values[kWidth], gates[kWidth];
    to_float(values, a[j]);
    to_float(gates, b[j]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = gated_unit<kExactGlu<T>>(values[i], gates[i]);
    from_float(a[j], values);
    store<Cache::streaming>(static_cast<T*>(g.y) + pack * kWidth, a[j]);
  }
}

void launch(const GluArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const HalvesView view(a.outer, a.inner, kPack<T>);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.accesses, int64_t{kThreads} * kPacks)));
    const LaunchConfig config{.grid = grid, .block = kThreads, .early = true};
    warpsmith::launch<&glu_stream_kernel<T>>(config, stream, a, view,
                                             StreamPolicy(2 * a.outer * a.inner * size_of(a.dtype)));
  });
}

const Register<GluArgs> registered{"stream", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
