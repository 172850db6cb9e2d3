// Gated linear unit, one 128-bit access a thread and half.
//   Against `naive`: one load brings 16 bytes. Bound: memory latency, with two loads under way a thread.
#include "elementwise/glu/glu.h"
#include "elementwise/glu/halves.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void glu_pack_kernel(const GluArgs g, const HalvesView v) {
  constexpr int kWidth = kPack<T>;
  const int64_t pack = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  if (pack >= v.accesses) return;
  const T* x = static_cast<const T*>(g.x) + v.first_half(pack) * kWidth;
  Pack<T> a, b;
  load(a, x);
  load(b, x + v.per_half * kWidth);
  float values[kWidth], gates[kWidth];
  to_float(values, a);
  to_float(gates, b);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = gated_unit<kExactGlu<T>>(values[i], gates[i]);
  from_float(a, values);
  store(static_cast<T*>(g.y) + pack * kWidth, a);
}

void launch(const GluArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const HalvesView view(a.outer, a.inner, kPack<T>);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.accesses, kThreads)));
    warpsmith::launch<&glu_pack_kernel<T>>({grid, kThreads}, stream, a, view);
  });
}

const Register<GluArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
