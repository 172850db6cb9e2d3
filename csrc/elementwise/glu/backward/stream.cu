// Gradient of the gated linear unit at memory speed: 128-bit accesses past L1.
//   Against `naive`: one load brings 16 bytes, and three of them start before the first is waited for. Bound: DRAM.
#include "device/start_early.h"
#include "device/stream_policy.h"
#include "elementwise/glu/backward/glu_backward.h"
#include "elementwise/glu/halves.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kMinBlocks = 4;

template <class T>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    glu_backward_stream_kernel(const GluBackwardArgs g, const HalvesView v, const StreamPolicy l2) {
  start_early();
  constexpr int kWidth = kPack<T>;
  const int64_t pack = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  if (pack >= v.accesses) return;
  const int64_t at = v.first_half(pack) * kWidth, half = v.per_half * kWidth;
  Pack<T> grad, a, b;

  // load
  const uint64_t policy = l2.of_loads();
  load_with_policy(grad, static_cast<const T*>(g.grad) + pack * kWidth, policy);
  load_with_policy(a, static_cast<const T*>(g.x) + at, policy);
  load_with_policy(b, static_cast<const T*>(g.x) + at + half, policy);
  // gradients
  float grads[kWidth], da[kWidth], db[kWidth];
  to_float(grads, grad);
  to_float(da, a);
  to_float(db, b);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) gated_unit_backward<kExactGlu<T>>(da[i], db[i], grads[i], da[i], db[i]);
  from_float(a, da);
  from_float(b, db);
  // write
  store<Cache::streaming>(static_cast<T*>(g.dx) + at, a);
  store<Cache::streaming>(static_cast<T*>(g.dx) + at + half, b);
}

const char* takes(const GluBackwardArgs& a) {
  if (!is_aligned(a.grad, 16) || !is_aligned(a.x, 16)) return "needs grad and x aligned to 16 bytes";
  return a.inner % (16 / size_of(a.dtype)) == 0 ? nullptr : "needs halves that are whole packs";
}

void launch(const GluBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const HalvesView view(a.outer, a.inner, kPack<T>);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.accesses, kThreads)));
    const LaunchConfig config{.grid = grid, .block = kThreads, .early = true};
    warpsmith::launch<&glu_backward_stream_kernel<T>>(config, stream, a, view,
                                                      StreamPolicy(3 * a.outer * a.inner * size_of(a.dtype)));
  });
}

const Register<GluBackwardArgs> registered{"stream", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
