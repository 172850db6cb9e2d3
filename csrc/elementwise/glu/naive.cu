// Gated linear unit, one element a thread.
//   One value an access. Bound: memory latency, with two small loads under way a thread.
#include "elementwise/glu/glu.h"
#include "elementwise/glu/halves.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void glu_naive_kernel(const GluArgs g, const HalvesView v) {
  const int64_t i = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  if (i >= v.accesses) return;
  const T* x = static_cast<const T*>(g.x) + v.first_half(i);
  const float y = gated_unit<kExactGlu<T>>(to_float(x[0]), to_float(x[v.per_half]));
  static_cast<T*>(g.y)[i] = from_float<T>(y);
}

const char* takes(const GluArgs&) { return nullptr; }

void launch(const GluArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const HalvesView view(a.outer, a.inner, 1);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.accesses, kThreads)));
    warpsmith::launch<&glu_naive_kernel<T>>({grid, kThreads}, stream, a, view);
  });
}

const Register<GluArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
