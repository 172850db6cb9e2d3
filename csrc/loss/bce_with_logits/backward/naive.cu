// Binary cross-entropy with logits backward, one value an access.
//   A thread per value. Bound: the number of load and store instructions.
#include "host/launch.h"
#include "host/registry.h"
#include "loss/bce.cuh"
#include "loss/bce_with_logits/backward/bce_with_logits_backward.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) bce_with_logits_backward_naive_kernel(const BceWithLogitsBackwardArgs a) {
  const T* x = static_cast<const T*>(a.x);            // [n]
  const T* target = static_cast<const T*>(a.target);  // [n]
  T* dx = static_cast<T*>(a.dx);                      // [n]
  const int64_t step = int64_t{kThreads} * gridDim.x;
  for (int64_t i = int64_t{kThreads} * blockIdx.x + threadIdx.x; i < a.n; i += step) {
    const float grad = a.grad[a.shared_grad ? 0 : i] * a.scale;
    dx[i] = from_float<T>(bce_with_logits_slope(to_float(x[i]), to_float(target[i])) * grad);
  }
}

const char* takes(const BceWithLogitsBackwardArgs&) { return nullptr; }

void launch(const BceWithLogitsBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&bce_with_logits_backward_naive_kernel<T>>({row_grid((a.n + kThreads - 1) / kThreads), kThreads},
                                                                 stream, a);
  });
}

const Register<BceWithLogitsBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
