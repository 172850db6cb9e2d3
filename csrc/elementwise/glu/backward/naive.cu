// Gradient of the gated linear unit, one element a thread.
//   One value an access. Bound: memory latency, with three small loads under way a thread.
#include "elementwise/glu/backward/glu_backward.h"
#include "elementwise/glu/halves.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void glu_backward_naive_kernel(const GluBackwardArgs g, const HalvesView v) {
  const int64_t i = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  if (i >= v.accesses) return;
  const int64_t at = v.first_half(i);
  const T* x = static_cast<const T*>(g.x) + at;
  T* dx = static_cast<T*>(g.dx) + at;
  const float grad = to_float(static_cast<const T*>(g.grad)[i]);
  float da, db;
  gated_unit_backward<kExactGlu<T>>(da, db, grad, to_float(x[0]), to_float(x[v.per_half]));
  dx[0] = from_float<T>(da);
  dx[v.per_half] = from_float<T>(db);
}

const char* takes(const GluBackwardArgs&) { return nullptr; }

void launch(const GluBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const HalvesView view(a.outer, a.inner, 1);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.accesses, kThreads)));
    warpsmith::launch<&glu_backward_naive_kernel<T>>({grid, kThreads}, stream, a, view);
  });
}

const Register<GluBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
